/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ticket.h. No lock.
 */
#include "shim/share/ticket.h"

#include "shim/process/fnv.h"

#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a handle is 64 bytes");
_Static_assert(offsetof(struct ticket_question, ticket.token) ==
                   offsetof(struct socket_head, token),
               "a question begins as the socket expects it");
_Static_assert(sizeof(struct ticket_question) == SOCKET_QUESTION_BYTES &&
                   sizeof(struct ticket_answer) == SOCKET_ANSWER_BYTES,
               "the socket carries messages of these sizes");

uint64_t ticket_check(const struct ticket *ticket)
{
    return fnv_add(FNV_EMPTY, ticket, offsetof(struct ticket, check));
}

bool ticket_is_ours(const CUipcMemHandle *handle)
{
    struct ticket ticket;
    memcpy(&ticket, handle, sizeof ticket);
    return ticket.magic == TICKET_MAGIC && ticket.check == ticket_check(&ticket);
}

enum socket_got ticket_receive(int reply, struct ticket_answer *answer, int *fds, int wait_ms)
{
    size_t num_fds;
    enum socket_got got = socket_receive(reply, answer, fds, &num_fds, wait_ms);
    if (got != SOCKET_GOT || answer->count == num_fds)
        return got;
    socket_close_all(fds, num_fds);
    return SOCKET_BROKEN;
}
