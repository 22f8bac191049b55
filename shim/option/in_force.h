/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room option/: the options, from the words of a value (word.h, number.h) to those in force.
 * It includes only headers of process/, and pool/config.h. Its one seam is this header. The other
 * headers are for those who take or show a value of an option: options.h has the table.
 *
 * The options in force are one struct. The thread that starts the library fills it from the
 * environment, before the state is ON. Options that are LIVE in the tables may change later:
 * 1. The control thread alone changes them, under a lock of in_force.c, and reads them without.
 * 2. A switch, and a time, is one atomic word: any thread may read it.
 * 3. For other LIVE options any other thread calls one of the functions that copy them below.
 * 4. All others are never written after the start: any thread may read them.
 */
#ifndef SHIM_IN_FORCE_H
#define SHIM_IN_FORCE_H

#include "shim/option/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the options from the environment. False: this process is not to be served. Only the thread
 * that state_claim chose calls it. */
bool in_force_load(void);
/* The process's options; valid while the state is ON. */
const struct options *in_force(void);
/* Changes one option (options_set). For the control thread. */
bool in_force_set(size_t row, const char *text);
/* Any thread: see options_pool_config; and all options. */
void in_force_pool_config(int device, uint64_t device_total_bytes, struct pool_config *out);
void in_force_copy(struct options *out);
/* Is there to be a report at the exit? Any thread. */
bool in_force_wants_report(void);

#endif
