/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Keeps our reading of the environment apart from the program's writing. The library reads the
 * environment once, when it starts (shim/entry/start.h). At that moment another thread of the
 * program may set a variable, and the C library may then move the environment.
 *
 * environ_hold waits for the writers that have begun. New writers wait until environ_release. A
 * forked child may inherit a reader or writer that never ends, so both waits are bounded (some
 * 10 ms). We do not see unsetenv, clearenv, and writes to `environ`. Atomics, no lock.
 */
#ifndef SHIM_ENVIRON_H
#define SHIM_ENVIRON_H

/* Before and after the library reads. One reader at a time. */
void environ_hold(void);
void environ_release(void);

/* Before and after each call of the C library's setenv and putenv (shim/route/setenv.c). Any
 * thread. */
void environ_write_begin(void);
void environ_write_end(void);

#endif
