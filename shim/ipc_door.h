/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The door of an exporting process: a datagram socket with an abstract name, at which other processes
 * of the same user ask for blocks. A thread with a descriptor table of its own waits at it, so the
 * program finds no descriptor of ours among its own, cannot close it, and hands it to no child; a forked
 * child, or a program started by exec, has no door. The thread calls nothing but the kernel: it passes
 * questions on to the control thread. It is there from the first export on, and never before.
 */
#ifndef SHIM_IPC_DOOR_H
#define SHIM_IPC_DOOR_H

#include "shim/ipc_wire.h"

#include <stdbool.h>

/* Opens the door if it is not open. False: it cannot be, the reason is logged once. */
bool ipc_door_open(struct ipc_token *token);
/* Is this the door of this very process? */
bool ipc_door_is_ours(const struct ipc_token *token);
/* The next question, if one waits. */
bool ipc_door_next(struct ipc_question *question);

#endif
