/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The listener of an exporting process: a datagram socket with an abstract name, to which other
 * processes of the same user send questions. A thread of its own waits at the socket, from the
 * first export on and never before.
 *
 * What the program notices of it:
 *  1. Nothing among its descriptors. The thread has a descriptor table of its own. So the program
 *     cannot close the socket and hands it to no child. A forked child, or a program started by
 *     exec, has no listener.
 *  2. Where the kernel or a sandbox refuses such a table, the thread shares the program's. Linux
 *     before 5.9 does so under the default rules of Docker of that time. Then the socket is one
 *     high descriptor, closed at exec and in forked children. If the program closes it, the
 *     listener opens a new one of the same name at the next message.
 *  3. The thread calls nothing but the kernel and the callback. It keeps the question for the
 *     control thread, and sends the control thread's answer to the process that asked.
 *  4. No thread waits for another process. The listener drops a question that finds 64 others
 *     waiting, and an answer that is not taken at once. The process that asked sees the end of its
 *     socket.
 */
#ifndef SHIM_LISTENER_H
#define SHIM_LISTENER_H

#include "shim/socket/socket.h"

/* Opens the listener if it is not open, and gives its token. Its thread calls asked() whenever a
 * question waits; asked() must not block. False: there is no thread or no socket for it. */
bool listener_open(struct socket_token *token, void (*asked)(void));
/* Is this the token of this process's listener? */
bool listener_is_ours(const struct socket_token *token);
/* Gives the oldest question that waits, SOCKET_QUESTION_BYTES, and its number for the answer.
 * False: none waits. */
bool listener_next(void *question, uint64_t *number);
/* Sends an answer of SOCKET_ANSWER_BYTES with its descriptors, which stay the caller's. The answer
 * may get lost. Takes at most 2 ms. */
void listener_answer(uint64_t number, const void *answer, const int *fds, size_t num_fds);
/* In a forked child: closes the descriptor that it inherited, if there is one. */
void listener_forget(void);

#endif
