/* SPDX-License-Identifier: BSD-2-Clause */
/* Host functions and stream callbacks: run by a thread of the driver, without the lock. The thread
 * exists once one has been submitted; while any is outstanding it also moves the virtual clock,
 * because the program may wait for its function by other means than a CUDA call. Driver lock. */
#ifndef SIM_HOSTCALL_H
#define SIM_HOSTCALL_H

struct work;

/* A command that calls the host has been submitted. */
void hostcall_expect(void);

/* All that comes before the work is done: call its function. */
void hostcall_queue(struct work *work);

#endif
