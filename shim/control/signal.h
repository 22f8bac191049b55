/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The signal that makes a duty of flush.c due (GPUCACHE_SIGNAL). The program's own handler for it
 * runs too. The library starts on one thread, and a forked child has one; so no lock.
 */
#ifndef SHIM_SIGNAL_H
#define SHIM_SIGNAL_H

#include "shim/control/thread.h"

/* Installs the handler. Returns the signal; 0: none, because the number is 0, the process ignores
 * the signal, or the kernel refuses it. Once in a process. */
int signal_install(int signal_number, struct duty *due);
/* In a forked child: the signal has the program's handler again. */
void signal_leave(void);

#endif
