/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See command.h, also for the argument: the duties, and the table of functions. All state belongs
 * to the control thread.
 */
#include "shim/command/command.h"

#include "pool/bits.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/process/clock.h"

#include <time.h>

enum when { ANY_TIME, PACED, IN_CALM };

static const struct command_row {
    enum when when;
    enum page_reply (*run)(const struct command *c, struct command_reply *reply);
} rows[] = {
#define COMMAND(name, when, parameters, help) {when, command_##name},
#include "shim/command/command.def"
#undef COMMAND
};

static uint64_t run_serve_new(uint64_t now_ns);
static uint64_t run_serve_calm(uint64_t now_ns);
static uint64_t run_serve_waiting(uint64_t now_ns);
static struct duty serve_new = {.run = run_serve_new, .due_ns = DUTY_NEVER};
static struct duty serve_calm = {.run = run_serve_calm, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty serve_waiting = {.run = run_serve_waiting, .due_ns = DUTY_NEVER};

static struct page_request request;
static struct command command;
static char reply_text[PAGE_REPLY_BYTES + 1];

/* The requests that wait. */
static struct {
    bool waits;
    int row;
    unsigned file;
    uint32_t sequence;
    uint64_t again_ns;
} waiting[PAGE_SLOTS];

static uint64_t last_work_ns; /* the end of the last work that is not ANY_TIME */

/* Step 4. */
static void pause_before(void)
{
    uint64_t now_ns = clock_now_ns(), due_ns = last_work_ns + COMMAND_PAUSE_NS;

    if (now_ns < due_ns)
        clock_sleep(due_ns - now_ns);
}

/* Step 8. */
static bool is_waiting(void)
{
    return waiting[request.slot].waits && waiting[request.slot].file == request.file &&
           waiting[request.slot].sequence == request.sequence;
}

/* Step 7. */
static enum page_reply run_row(int row, bool again, struct command_reply *reply)
{
    bool other = again && row != waiting[request.slot].row;

    waiting[request.slot].waits = false;
    if (other)
        return command_error(reply, PAGE_REPLY_BAD, "the request changed while it waited");
    command.slot = request.slot;
    command.again = again;
    enum page_reply code = rows[row].run(&command, reply);
    if (reply->begins_park)
        page_note_park(&request);
    if (reply->again_ns) {
        waiting[request.slot].waits = true;
        waiting[request.slot].row = row;
        waiting[request.slot].file = request.file;
        waiting[request.slot].sequence = request.sequence;
        waiting[request.slot].again_ns = reply->again_ns;
        control_due(&serve_waiting, reply->again_ns);
    }
    return code;
}

/* False: it is left for the duty `serve_calm`. */
static bool serve(bool is_calm, bool again)
{
    struct command_reply reply = {.text = {reply_text, sizeof reply_text, 0}};
    enum page_reply code = PAGE_REPLY_BAD;

    reply_text[0] = '\0';
    int row = command_parse(request.ask, request.ask_bytes, &command, &reply);
    if (row >= 0) {
        if (rows[row].when == IN_CALM && !is_calm && !again)
            return false;
        if (rows[row].when != ANY_TIME && !again)
            pause_before();
        code = run_row(row, again, &reply);
        if (rows[row].when != ANY_TIME)
            last_work_ns = clock_now_ns();
        if (reply.again_ns)
            return true;
    } else if (again) {
        waiting[request.slot].waits = false;
    }
    if (!text_fits(&reply.text))
        command_error(&reply, code, "the reply is too long");
    page_answer_request(&request, &(struct page_answer){.code = code,
                                                        .value = reply.value,
                                                        .text = reply_text,
                                                        .text_bytes = reply.text.used_bytes});
    return true;
}

static uint64_t run_serve_new(uint64_t now_ns)
{
    bool left = false;

    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
        if (page_read_request(slot, &request) && !is_waiting() && !serve(false, false))
            left = true;
    if (left)
        control_due(&serve_calm, 0);
    return DUTY_NEVER;
}

static uint64_t run_serve_calm(uint64_t now_ns)
{
    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
        if (page_read_request(slot, &request) && !is_waiting())
            serve(true, false);
    return DUTY_NEVER;
}

static uint64_t run_serve_waiting(uint64_t now_ns)
{
    uint64_t next_ns = DUTY_NEVER;

    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++) {
        bool due = waiting[slot].waits && waiting[slot].again_ns <= now_ns;

        if (due && page_read_request(slot, &request) && is_waiting())
            serve(true, true);
        else if (due)
            waiting[slot].waits = false; /* it is gone: step 8 */
        if (waiting[slot].waits)
            next_ns = min_u64(next_ns, waiting[slot].again_ns);
    }
    return next_ns;
}

static void on_request(void)
{
    control_due(&serve_new, 0);
    publish_soon();
}

void command_start(void)
{
    publish_set_on_request(on_request);
}

enum page_reply command_look(const struct command *c, struct command_reply *reply)
{
    bool done = publish_now();

    text_add(&reply->text, "{}");
    return done ? PAGE_REPLY_DONE : PAGE_REPLY_REFUSED;
}
