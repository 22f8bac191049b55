/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `give` of another process that needs memory (shim/share/lend.h). reply_value is what
 * went back. Where idle memory is too little and the process is asleep, it parks what is missing
 * (shim/park/asleep.h). All state belongs to the control thread.
 */
#include "shim/command/command.h"
#include "shim/context/context.h"
#include "shim/control/gpu_wait.h"
#include "shim/park/asleep.h"
#include "shim/park/park.h"
#include "shim/process/clock.h"
#include "shim/share/lend.h"

#include <inttypes.h>

/* A neighbour that waits for less is given no parked memory. */
#define PARK_LEAST_NS (100 * MS_NS)
#define PARK_LOOK_NS (2 * MS_NS)

/* A request that waits for frameworks, for GPU work, or for a park. */
static struct give_wait {
    struct gpu_wait wait;
    uint64_t given_bytes;
    uint64_t park;          /* its number; 0: none */
    uint64_t asked_bytes;   /* of it */
    bool has_joined;        /* .. which was under way before the request came */
    uint64_t park_until_ns; /* until when it may begin; then, until when it is waited for */
} waiting[PAGE_SLOTS];

/* A park that is under way already, because the process is idle or another one asked, gives this
 * neighbour memory as well. Without that the request would end with nothing, and its asker would
 * fail beside memory that is about to be free. */
static bool begin_to_park(struct give_wait *w, uint64_t missing_bytes)
{
    const struct park_wish wish = {
        .reason = PARK_LENT, .device = w->wait.device, .most_bytes = missing_bytes};

    if (clock_now_ns() >= w->park_until_ns)
        return false;
    w->park = park_under_way();
    w->has_joined = w->park;
    if (!w->park && asleep_may_lend(w->wait.device, missing_bytes))
        w->park = park_begin(&wish);
    w->asked_bytes = missing_bytes;
    if (w->park)
        w->park_until_ns = clock_now_ns() + PAGE_PARK_MS * MS_NS;
    return w->park;
}

/* Has the park ended, or is even the asker's time for that up? */
static bool has_parked(struct give_wait *w)
{
    struct park_receipt r;
    uint64_t bytes = 0;

    if (!park_is_over(w->park, &r))
        return clock_now_ns() >= w->park_until_ns;
    for (unsigned i = 0; i < r.num_gpus; i++)
        bytes += r.gpus[i].device == w->wait.device ? r.gpus[i].parked_bytes : 0;
    w->given_bytes += bytes;
    if (!w->has_joined && bytes)
        lend_given(bytes);
    else if (!w->has_joined)
        asleep_lent_nothing(w->wait.device, w->asked_bytes);
    return true;
}

enum page_reply command_give(const struct command *c, struct command_reply *reply)
{
    struct give_wait *w = &waiting[c->slot];
    uint64_t bytes = 0, wait_ms = 0;
    const char *gpu = command_value(c, "gpu");
    bool found = true;

    if (!command_number(c, "bytes", UINT64_MAX, &bytes, reply) ||
        !command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply))
        return PAGE_REPLY_BAD;
    if (!c->again && !lend_is_on())
        return command_error(reply, PAGE_REPLY_REFUSED, "GPUCACHE_SHARE=0: the process gives none");
    if (!c->again) {
        *w = (struct give_wait){0};
        /* The asker waits twice as long as it says (page/client.c). */
        if (wait_ms * MS_NS >= PARK_LEAST_NS)
            w->park_until_ns = clock_now_ns() + wait_ms * MS_NS * 7 / 4;
        w->given_bytes = lend_give(gpu, bytes, wait_ms * MS_NS, &w->wait, &found);
    }
    if (!found)
        return command_error(reply, PAGE_REPLY_REFUSED, "the process has no pool on gpu %.60s",
                             gpu);
    bool over = gpu_wait_over(&w->wait, gpu_wait_done(&w->wait));
    if (c->again && !w->park && w->given_bytes < bytes)
        w->given_bytes += lend_give_rest(gpu, bytes - w->given_bytes, &w->wait, over);
    if (!w->park && w->given_bytes < bytes && !over) {
        reply->again_ns = gpu_wait_next_ns(&w->wait);
        return PAGE_REPLY_PARTLY;
    }
    reply->begins_park =
        !w->park && w->given_bytes < bytes && begin_to_park(w, bytes - w->given_bytes);
    if (w->park && !has_parked(w)) {
        reply->again_ns = clock_now_ns() + PARK_LOOK_NS;
        return PAGE_REPLY_PARTLY;
    }
    reply->value = w->given_bytes;
    text_add(&reply->text, "{\"returned_bytes\":%" PRIu64 "}", reply->value);
    return reply->value >= bytes ? PAGE_REPLY_DONE : PAGE_REPLY_PARTLY;
}
