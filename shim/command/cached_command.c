/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `cached`: what the frameworks keep in caches of their own (step 11 of
 * shim/framework/framework.h). All state belongs to the control thread, which waits for nothing
 * here: the request is looked at again in turns.
 *
 *   {"ns":1000000,"frameworks":[{"name":"torch","state":"done","age_ns":0,
 *    "gpus":[{"device":0,"cached_bytes":N}]}]}
 *
 * One for each package that is loaded. Without "gpus" its figures are not known. A package that is
 * busy or late has its last figures, and their age. "frameworks":"late" says that none has ever
 * answered. PAGE_REPLY_PARTLY: not all figures are of now.
 */
#include "shim/command/command.h"
#include "shim/control/frameworks.h"
#include "shim/process/clock.h"

#include <inttypes.h>
#include <string.h>

/* Between two looks for the answer, and before a busy package is asked again. */
#define LOOK_NS (2 * MS_NS)
#define AGAIN_NS (10 * MS_NS)
enum { WAIT_MS = 100, ROW_BYTES = 64 };

/* A request that waits for the answer. */
static struct cached_wait {
    uint64_t question, start_ns, until_ns;
    uint64_t ask_at_ns;                              /* 0: the question is open */
    struct framework_result results[NUM_FRAMEWORKS]; /* of the last answer that came meanwhile */
} waiting[PAGE_SLOTS];

/* The latest answer, and the last figures of each package; at_ns 0: there are none. */
static struct framework_cached latest[NUM_FRAMEWORKS], known[NUM_FRAMEWORKS];

static bool has_figures(const struct framework_result *r)
{
    return r->state == FRAMEWORK_DONE || r->state == FRAMEWORK_IDLE;
}

static void keep_results(const struct framework_result *results)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        if (has_figures(&results[i]))
            known[i] = latest[i];
}

static void add_cached_gpus(struct text *t, const struct framework_cached *its)
{
    bool first = true;

    text_add(t, ",\"gpus\":[");
    for (int device = 0; device < FRAMEWORK_DEVICES; device++) {
        if (!(its->devices >> device & 1) || t->used_bytes + ROW_BYTES * 2 > t->size_bytes)
            continue;
        text_add(t, "%s{\"device\":%d,\"cached_bytes\":%" PRIu64 "}", first ? "" : ",", device,
                 its->bytes[device]);
        first = false;
    }
    text_add(t, "]");
}

/* now: the package's state of now; then: its last figures. */
static void add_one(struct text *t, const struct framework_result *now,
                    const struct framework_cached *then, bool first)
{
    uint64_t now_ns = clock_now_ns();
    bool has_then = then->at_ns && (has_figures(now) || now->state == FRAMEWORK_BUSY ||
                                    now->state == FRAMEWORK_LATE);

    text_add(t, "%s{", first ? "" : ",");
    text_add_json_string(t, "name", now->name);
    text_add(t, ",");
    text_add_json_string(t, "state", framework_state_name(now->state));
    if (has_then) {
        text_add(t, ",\"age_ns\":%" PRIu64, has_figures(now) ? 0 : now_ns - then->at_ns);
        add_cached_gpus(t, then);
    }
    text_add(t, "}");
}

static enum page_reply write_answer(const struct framework_result *results, uint64_t start_ns,
                                    struct command_reply *reply)
{
    bool all = true, any = false;

    text_add(&reply->text, "{\"ns\":%" PRIu64 ",\"frameworks\":", clock_now_ns() - start_ns);
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        any |= known[i].at_ns != 0;
    if (framework_all_are(results, FRAMEWORK_LATE) && !any) {
        text_add(&reply->text, "\"late\"}");
        return PAGE_REPLY_PARTLY;
    }
    any = false;
    text_add(&reply->text, "[");
    for (int i = 0; i < NUM_FRAMEWORKS; i++) {
        /* Where the answer is late, nobody knows which packages are loaded but by the figures. */
        if (results[i].state == FRAMEWORK_ABSENT ||
            (results[i].state == FRAMEWORK_LATE && !known[i].at_ns))
            continue;
        add_one(&reply->text, &results[i], &known[i], !any);
        any = true;
        all = all && has_figures(&results[i]);
    }
    text_add(&reply->text, "]}");
    return all ? PAGE_REPLY_DONE : PAGE_REPLY_PARTLY;
}

/* Do all packages tell, or is the time over? Busy packages are asked again after a while. */
static bool is_through(struct cached_wait *w, uint64_t now_ns, struct command_reply *reply)
{
    struct framework_result results[NUM_FRAMEWORKS];
    bool has = framework_has_looked(w->question, results, latest);

    if (has) {
        keep_results(results);
        memcpy(w->results, results, sizeof results);
    }
    bool busy = has && framework_any_is(results, FRAMEWORK_BUSY);
    if ((has && !busy) || now_ns >= w->until_ns)
        return true;
    w->ask_at_ns = busy ? now_ns + AGAIN_NS : 0;
    reply->again_ns = now_ns + (busy ? AGAIN_NS : LOOK_NS);
    return false;
}

enum page_reply command_cached(const struct command *c, struct command_reply *reply)
{
    struct cached_wait *w = &waiting[c->slot];
    uint64_t wait_ms = WAIT_MS, now_ns = clock_now_ns();

    if (!command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply))
        return PAGE_REPLY_BAD;
    if (!c->again) {
        *w = (struct cached_wait){.question = frameworks_look(),
                                  .start_ns = now_ns,
                                  .until_ns = now_ns + wait_ms * MS_NS};
        framework_has_looked(w->question, w->results, latest);
    } else if (w->ask_at_ns && w->ask_at_ns <= now_ns) {
        w->question = frameworks_look();
    }
    return is_through(w, now_ns, reply) ? write_answer(w->results, w->start_ns, reply)
                                        : PAGE_REPLY_PARTLY;
}
