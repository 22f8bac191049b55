/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The environment is read once, at the first allocation, which may happen while another thread of the
 * program sets a variable: the C library then moves the environment under the reader. Between hold and
 * release, setenv and putenv of other threads wait for a moment; hold waits for those under way. Both
 * waits are bounded, since a forked child may inherit either side unfinished.
 */
#ifndef SHIM_ENVIRON_H
#define SHIM_ENVIRON_H

void environ_hold(void);
void environ_release(void);

#endif
