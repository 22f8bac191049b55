/* SPDX-License-Identifier: BSD-2-Clause */
/* Host functions, which interprocess events need. A thread of the driver runs them without the
 * lock. It exists once one has been submitted. While one is outstanding, the thread also moves the
 * virtual clock: another process may wait, and this program need not call CUDA. Driver lock. */
#ifndef SIM_HOSTCALL_H
#define SIM_HOSTCALL_H

struct work;

/* A host function has been submitted. */
void hostcall_expect(void);

/* All work before it is done: calls its function. */
void hostcall_queue(struct work *work);

#endif
