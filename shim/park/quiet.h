/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When memory may go away: who must not be parked, and when no GPU work of the program's runs.
 *
 *  1. All work of the process on pool memory is work of a context with a pool, of one that was
 *     granted access to such memory (shim/share/peer.h), or of another one of the same device: the
 *     program made that (cuCtxCreate), or it is the device's primary context. Other contexts do not
 *     reach it: mapped memory is accessible only to the devices that the library allowed.
 *  2. An event of a context is complete when all work is that was submitted to the context before:
 *     that of its streams and green contexts, graphs, host functions, waits in streams, and what
 *     kernels launched themselves.
 *  3. quiet_await records such an event in each of these contexts and asks whether it is complete.
 *     It runs behind gate_drain, so nothing is submitted behind the event, and a context that was
 *     idle once stays idle.
 *  4. Work that the library does not see, accesses of other devices than GPUs, and contexts without
 *     such events are beyond 3. quiet_refusal refuses where a process may have them.
 *  5. What may come after quiet_refusal and needs no loader's lock is looked at again by
 *     quiet_await: captures, lost contexts. Between closing and opening the gate nobody takes the
 *     loader's lock, which a thread at the gate may hold.
 *  6. If the driver does not record such an event, nobody knows what runs: quiet_await says so. The
 *     next park asks anew, by events of its own where the pool has given up its events.
 *  7. No thread may use an event of a created context that has ended (Note [Visits] in
 *     device_fence.h). A context with a pool is asked while it is pinned (context.h). For other
 *     created ones quiet_look raises `asks` and then reads whether a thread may be ending a
 *     context. That thread raises `enders` and then waits while one is asked, some 2 s at most. So
 *     one of the two sees the other.
 *
 * Not covered: a library that is loaded while the process is parked, and submits work that is not
 * seen before the program makes any use.
 *
 * The sentences are static and have no full stop. They are the `why` of a receipt.
 */
#ifndef SHIM_QUIET_H
#define SHIM_QUIET_H

#include <stdbool.h>
#include <stdint.h>

/* Why the process must not be parked; NULL: it may. With the gate open or PARKED, on an own thread,
 * no lock held. Opens a folder of /proc. */
const char *quiet_refusal(void);
/* Waits until no work runs in any context of step 1. NULL: so it is. Else why not: work runs still
 * at end_ns (clock_now_ns), an arrival has cancelled the park, or step 5. Behind gate_drain, on
 * the park thread. */
const char *quiet_await(uint64_t end_ns);
/* The same for this moment. The gate may be open: then work may come at once. On the park thread.
 */
const char *quiet_look(void);
/* The caller is about to end a context: see 7. quiet_ender_ends follows. */
void quiet_ender_begins(void);
void quiet_ender_ends(void);
/* May a thread be ending a context? */
bool quiet_has_enders(void);

#endif
