/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The file of GPUCACHE_STATS while the program runs. A process that a signal kills (SIGTERM of a
 * batch system, SIGKILL) runs no exit handler. The library takes no such signal from the program.
 * So the control thread writes the report to the file at times, if a figure changed. It does so
 * first two seconds after the first pool, then less often, and at last every ten seconds. The
 * report says that the program was running. The report at the exit replaces it.
 *
 * Only a regular file is written so, or made: never a device, a pipe or a link. A process that is
 * killed inside the write, some 20 us, leaves a report that is cut off.
 *
 * Why the two reports do not mix:
 *  1. interim_report_end sets a word, then looks whether the control thread writes.
 *  2. The control thread sets a word before it writes, then looks whether the process leaves.
 *  3. So at least one sees the other: the control thread does not write, or interim_report_end
 *     waits for it. It waits a second at most, because the file may be on a file system that hangs.
 */
#ifndef SHIM_INTERIM_REPORT_H
#define SHIM_INTERIM_REPORT_H

/* The library has started, or GPUCACHE_STATS has changed (control thread). */
void interim_report_start(void);
/* The process leaves, and its report is about to be written. */
void interim_report_end(void);

#endif
