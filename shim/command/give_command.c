/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `give` of another process that needs memory (shim/share/lend.h). reply_value is what
 * went back.
 */
#include "shim/command/command.h"
#include "shim/share/lend.h"

#include <inttypes.h>

enum page_reply command_give(const struct command *c, struct command_reply *reply)
{
    uint64_t bytes = 0, wait_ms = 0;
    bool found = false;

    if (!command_number(c, "bytes", UINT64_MAX, &bytes, reply) ||
        !command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply))
        return PAGE_REPLY_BAD;
    if (!lend_is_on())
        return command_error(reply, PAGE_REPLY_REFUSED, "GPUCACHE_SHARE=0: the process gives none");
    reply->value = lend_give(command_value(c, "gpu"), bytes, wait_ms * 1000000, &found);
    if (!found)
        return command_error(reply, PAGE_REPLY_REFUSED, "the process has no pool on gpu %.60s",
                             command_value(c, "gpu"));
    text_add(&reply->text, "{\"returned_bytes\":%" PRIu64 "}", reply->value);
    return reply->value >= bytes ? PAGE_REPLY_DONE : PAGE_REPLY_PARTLY;
}
