/* SPDX-License-Identifier: BSD-2-Clause */
/* Host functions, which interprocess events need: a thread of the driver runs them without the lock.
 * The thread exists once one has been submitted. While one is outstanding, the thread also moves the
 * virtual clock, because another process may wait for it, and the program need not call CUDA. Driver
 * lock. */
#ifndef SIM_HOSTCALL_H
#define SIM_HOSTCALL_H

struct work;

/* A command that calls the host has been submitted. */
void hostcall_expect(void);

/* All that comes before the work is done: call its function. */
void hostcall_queue(struct work *work);

#endif
