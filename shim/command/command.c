/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See command.h, also for the argument: the duties, and the table of functions. All state belongs
 * to the control thread.
 */
#include "shim/command/command.h"

#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/process/state.h"

#include <time.h>

enum when { ANY_TIME, PACED, IN_CALM };

static const struct row {
    enum when when;
    enum page_reply (*run)(const struct command *c, struct command_reply *reply);
} rows[] = {
#define COMMAND(name, when, parameters, help) {when, command_##name},
#include "shim/command/command.def"
#undef COMMAND
};

static uint64_t run_look(uint64_t now_ns);
static uint64_t run_calm(uint64_t now_ns);
static struct duty look = {.run = run_look, .due_ns = DUTY_NEVER};
static struct duty calm = {.run = run_calm, .needs_calm = true, .due_ns = DUTY_NEVER};

static struct page_request request;
static struct command command;
static char reply_text[PAGE_REPLY_BYTES + 1];

static uint64_t last_work_ns; /* the end of the last work that is not ANY_TIME */

/* Step 4. */
static void pause_before(void)
{
    uint64_t now_ns = state_clock_ns(), due_ns = last_work_ns + COMMAND_PAUSE_NS;

    if (now_ns < due_ns)
        nanosleep(&(struct timespec){.tv_nsec = (long)(due_ns - now_ns)}, NULL);
}

/* False: it is left for the duty `calm`. */
static bool serve(bool is_calm)
{
    struct command_reply reply = {.text = {reply_text, sizeof(reply_text), 0}};
    enum page_reply code = PAGE_REPLY_BAD;

    reply_text[0] = '\0';
    int row = command_parse(request.ask, request.ask_bytes, &command, &reply);
    if (row >= 0) {
        if (rows[row].when == IN_CALM && !is_calm)
            return false;
        if (rows[row].when != ANY_TIME)
            pause_before();
        code = rows[row].run(&command, &reply);
        if (rows[row].when != ANY_TIME)
            last_work_ns = state_clock_ns();
    }
    if (!text_fits(&reply.text))
        command_error(&reply, code, "the reply is too long");
    page_answer_request(&request, &(struct page_answer){.code = code,
                                                        .value = reply.value,
                                                        .text = reply_text,
                                                        .text_bytes = reply.text.used_bytes});
    return true;
}

static uint64_t run_look(uint64_t now_ns)
{
    bool left = false;

    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
        if (page_read_request(slot, &request) && !serve(false))
            left = true;
    if (left)
        control_due(&calm, 0);
    return DUTY_NEVER;
}

static uint64_t run_calm(uint64_t now_ns)
{
    for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
        if (page_read_request(slot, &request))
            serve(true);
    return DUTY_NEVER;
}

static void rang(void)
{
    control_due(&look, 0);
    publish_soon();
}

void command_start(void)
{
    publish_set_bell(rang);
}

enum page_reply command_look(const struct command *c, struct command_reply *reply)
{
    bool done = publish_now();

    text_add(&reply->text, "{}");
    return done ? PAGE_REPLY_DONE : PAGE_REPLY_REFUSED;
}
