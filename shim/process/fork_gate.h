/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Moments of the library's own threads in which no child is to be forked: a child would find a lock
 * of the interpreter's or the loader's taken, and nobody to release it.
 *
 *  1. Safety. An own thread counts itself in, then looks whether a fork is under way. If so, it
 *     leaves and waits. A thread that forks says so, then looks at the count and waits for 0. One
 *     of the two sees the other. All accesses are sequentially consistent.
 *  2. Liveness. A wait ends after FORK_GATE_PATIENCE_NS at the latest. Then both go on, as they
 *     would without the gate. So it adds no circle, whatever locks the program's handlers of
 *     pthread_atfork hold meanwhile.
 *  3. What an own thread does inside is short, and needs no lock that a thread holds for long:
 *     neither the interpreter's, nor a package's, nor the one that dlopen holds over constructors.
 *  4. A fork that runs no handlers (clone, _Fork, vfork) passes the gate. So does its child, which
 *     may find a count that nobody takes back: each of its forks then waits as long as in 2.
 */
#ifndef SHIM_FORK_GATE_H
#define SHIM_FORK_GATE_H

#include "shim/process/clock.h"

#define FORK_GATE_PATIENCE_NS SEC_NS

/* The beginning and the end of such a moment. Not one inside another. Own threads only, with no
 * lock held. Keep errno. */
void fork_gate_enter(void);
void fork_gate_leave(void);

/* What pthread_atfork calls: before the fork; after it in the parent, also if it failed; and in the
 * child. Keep errno. */
void fork_gate_close(void);
void fork_gate_open(void);
void fork_gate_forget(void);

#endif
