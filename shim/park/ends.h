/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The ends of contexts and of the process beside the park thread's work on contexts: step 7 of
 * park.h. No lock.
 */
#ifndef SHIM_PARK_ENDS_H
#define SHIM_PARK_ENDS_H

#include <stdbool.h>
#include <stdint.h>

/* The program is about to end a context, or to reset or release a primary one. Each call has a call
 * of ends_over behind it. Waits as a use does, and until the driver is open (closed.h). */
void ends_begin(void);
void ends_over(void);
/* The process leaves. Waits for work of the park thread under way, until end_ns at most. */
void ends_at_exit(uint64_t end_ns);

/* Does no context end, and does the process not leave? */
bool ends_are_none(void);
bool ends_process_leaves(void);
/* Which of both it is. */
const char *ends_why(void);

/* The park thread alone. From here to ends_allow no context ends. False, and there is nothing to
 * allow: one is about to. */
bool ends_hold_off(void);
/* .. after those that are about to end; after wait_ns all the same, because they wait for this
 * thread. */
void ends_hold_off_after(uint64_t wait_ns);
void ends_allow(void);

#endif
