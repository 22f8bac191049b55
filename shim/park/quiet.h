/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When memory may go away: who must not be parked, and when no GPU work of the program's runs.
 *
 *  1. All work of the process on pool memory is work of a context with a pool, or of a context that
 *     was granted access to such memory (shim/share/peer.h). Other contexts do not reach it: mapped
 *     memory is accessible only to the devices that the library allowed.
 *  2. An event of a context is complete when all work is that was submitted to the context before:
 *     that of its streams, its green contexts, graphs, host functions, waits in streams, and what
 *     kernels launched themselves.
 *  3. quiet_await records such an event in each of these contexts and asks whether it is complete.
 *     It runs behind gate_drain, so nothing is submitted behind the events. A context is looked at
 *     once; idle ones stay idle.
 *  4. Work that the library cannot see is not covered by 3, nor are accesses by other devices.
 *     quiet_refusal refuses where a process may have them.
 *
 * The sentences are static and end without a full stop. They are the receipt's `why`.
 */
#ifndef SHIM_QUIET_H
#define SHIM_QUIET_H

#include <stdint.h>

/* Why the process must not be parked, as one sentence; NULL: it may. With the gate open, and no
 * lock held: walks the list of loaded libraries. May ask the driver. */
const char *quiet_refusal(void);
/* The same, of what may have come since, without the loader's lock. Behind gate_drain. */
const char *quiet_refusal_behind(void);
/* Waits until no work runs in any context of step 1. NULL: so it is. Else the sentence, and work
 * runs, or an arrival has cancelled the park. Until end_ns (clock_now_ns). Behind gate_drain. */
const char *quiet_await(uint64_t end_ns);

#endif
