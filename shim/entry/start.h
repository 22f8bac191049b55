/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The start of the library, its end in a forked child, and the report when the process exits.
 */
#ifndef SHIM_START_H
#define SHIM_START_H

#include <stdbool.h>

/* Starts the library if no thread has done so. The driver must be known (hooks_init). False: the
 * library is off, or another thread is just starting it. Keeps errno. */
bool start_library(void);
/* The same, for a first call that needs the library: where another thread is just starting it, this
 * one waits for that. */
bool library_is_started(void);

#endif
