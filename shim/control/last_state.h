/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The file of GPUCACHE_STATS while the program runs. A process that a signal kills (SIGTERM of a
 * batch system, SIGKILL) runs no exit handler, and the library takes no such signal from the
 * program. So the control thread writes the report to the file now and then: two seconds after the
 * first pool, then less and less often, at last every ten seconds, if a figure changed. The report
 * says that the program was running. The report at the exit replaces it.
 *
 * Only a regular file is written so, or made: never a device, a pipe or a link. A process that is
 * killed inside the write, some 20 us, leaves a report that is cut off.
 *
 * The thread that ends the process and the control thread meet at two words. last_state_end sets
 * one, then looks at the other; the control thread sets the other, then looks at the one. So the
 * control thread does not begin, or last_state_end waits for it, a second at most: the file may be
 * on a file system that hangs.
 */
#ifndef SHIM_LAST_STATE_H
#define SHIM_LAST_STATE_H

/* The library has started, or GPUCACHE_STATS has changed (control thread). */
void last_state_start(void);
/* The process leaves, and its report is about to be written. */
void last_state_end(void);

#endif
