/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The gate between our reading of the environment and the program's writing of it. The library
 * reads the environment once, at the first allocation. Another thread of the program may set a
 * variable at that moment, and the C library then moves the environment under the reader.
 *
 * Between environ_hold and environ_release the writers wait; environ_hold waits for the writers
 * that have begun. A forked child may inherit either side unfinished, so both waits are bounded
 * (some 10 ms). Atomics, no lock.
 */
#ifndef SHIM_ENVIRON_H
#define SHIM_ENVIRON_H

/* Around the library's reading. One reader at a time. */
void environ_hold(void);
void environ_release(void);

/* Around each call of the C library that changes the environment (shim/route/setenv.c). Any
 * thread. */
void environ_write_begin(void);
void environ_write_end(void);

#endif
