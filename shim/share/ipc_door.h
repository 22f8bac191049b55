/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The door of an exporting process: a datagram socket with an abstract name, at which other processes
 * of the same user ask for blocks. A thread with a descriptor table of its own waits at it, so the
 * program finds no descriptor of ours among its own, cannot close it, and hands it to no child; a forked
 * child, or a program started by exec, has no door. The thread calls nothing but the kernel: it passes
 * questions on to the control thread, and that one's answers to who asked. It is there from the
 * first export on, and never before.
 *
 * Where the kernel or a sandbox refuses such a table (Linux before 5.9 under the default rules of
 * Docker of that time), the thread shares the program's: then a high descriptor is the door's,
 * closed at exec and in forked children. A program that closes it has a new door of the same name
 * with the next message.
 *
 * Nobody is waited for: a question that finds 64 others, and an answer that is not taken at once,
 * are dropped, and who asked sees the end of its socket.
 */
#ifndef SHIM_IPC_DOOR_H
#define SHIM_IPC_DOOR_H

#include "shim/share/ipc_wire.h"

#include <stdbool.h>

/* Opens the door if it is not open; asked() is called on its thread whenever a question waits. False: it cannot
 * be, the reason is logged once. */
bool ipc_door_open(struct ipc_token *token, void (*asked)(void));
/* Is this the door of this very process? */
bool ipc_door_is_ours(const struct ipc_token *token);
/* The next question, if one waits; its number is for the answer. */
bool ipc_door_next(struct ipc_question *question, uint64_t *number);
/* Sends the answer with its descriptors, which stay the caller's; it may get lost. */
void ipc_door_answer(uint64_t number, const struct ipc_answer *answer, const int *fds,
                     size_t num_fds);
/* In a forked child: nothing of the door is left. */
void ipc_door_forget(void);

#endif
