/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `give` of another process that needs memory (shim/share/lend.h). reply_value is what
 * went back. All state belongs to the control thread.
 */
#include "shim/command/command.h"
#include "shim/control/gpu_wait.h"
#include "shim/process/clock.h"
#include "shim/share/lend.h"

#include <inttypes.h>

/* A request that waits for frameworks or for GPU work. */
static struct {
    struct gpu_wait wait;
    uint64_t given_bytes;
} waiting[PAGE_SLOTS];

enum page_reply command_give(const struct command *c, struct command_reply *reply)
{
    struct gpu_wait *t = &waiting[c->slot].wait;
    uint64_t bytes = 0, wait_ms = 0, *given_bytes = &waiting[c->slot].given_bytes;
    const char *gpu = command_value(c, "gpu");
    bool found = true;

    if (!command_number(c, "bytes", UINT64_MAX, &bytes, reply) ||
        !command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply))
        return PAGE_REPLY_BAD;
    if (!lend_is_on())
        return command_error(reply, PAGE_REPLY_REFUSED, "GPUCACHE_SHARE=0: the process gives none");
    if (!c->again)
        *given_bytes = lend_give(gpu, bytes, wait_ms * MS_NS, t, &found);
    if (!found)
        return command_error(reply, PAGE_REPLY_REFUSED, "the process has no pool on gpu %.60s",
                             gpu);
    bool over = gpu_wait_over(t, gpu_wait_done(t));
    if (c->again && *given_bytes < bytes)
        *given_bytes += lend_give_rest(gpu, bytes - *given_bytes, t, over);
    if (*given_bytes < bytes && !over) {
        reply->again_ns = gpu_wait_next_ns(t);
        return PAGE_REPLY_PARTLY;
    }
    reply->value = *given_bytes;
    text_add(&reply->text, "{\"returned_bytes\":%" PRIu64 "}", reply->value);
    return reply->value >= bytes ? PAGE_REPLY_DONE : PAGE_REPLY_PARTLY;
}
