/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The fences of the pool's backend on the CUDA driver: the rows fence_create to fence_await of
 * pool/backend.h. No lock.
 *
 * Note [Visits]. Any call with an event of a created context ends the process by SIGSEGV once the
 * context has ended: cuEventQuery, cuEventRecord, cuEventSynchronize, cuEventDestroy, also in a
 * thread in which the context was current when it ended (580.159). So no thread makes one then.
 * 1. A thread uses events of a context's record in a visit: it raises `visits`, and then reads
 *    `destruction`. If a destruction has begun, it lowers `visits` and uses none.
 * 2. A destroyer writes `destruction`, and then waits until there is no visit (context.c). So one
 *    of the two sees the other.
 * 3. A visit waits for GPU work alone, for which the driver's destruction waits, too. That work may
 *    be a host function that waits for the destroyer. So the destroyer waits for some 2 s at most.
 *    It does not wait if its own thread is in a call scope: a signal handler destroys then.
 * 4. Memory of other processes is unmapped behind an event that has no record: the destroyer waits
 *    in import_hide. Red zones are read in calls of the program.
 */
#ifndef SHIM_DEVICE_FENCE_H
#define SHIM_DEVICE_FENCE_H

#include "shim/driver/backend.h"

/* Does this driver have all functions that fences by events need? */
bool device_fence_has_events(void);
/* To be called in a call scope of ctx. The host waits for all work that was submitted to the
 * context so far, without a limit. Captures are held off for a moment only.
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a capture is open, and nothing was done. */
CUresult device_fence_drain(CUcontext ctx);

/* Is all work complete that was submitted to ctx so far? By an event of its own, so the driver must
 * have those. CUDA_SUCCESS; CUDA_ERROR_NOT_READY: work runs; CUDA_ERROR_DEINITIALIZED: the process
 * leaves, or the context is gone; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a capture is open; else
 * the error of the context. In no call scope. */
CUresult device_fence_ask(CUcontext ctx);

/* For a pool that begins, in its context: makes the event that its first fence has if no other one
 * can be made then. */
void device_fence_start(struct device_backend *d);
int device_fence_create(struct backend *b, uint64_t *fence);
void device_fence_destroy(struct backend *b, uint64_t fence);
enum fence_record device_fence_record(struct backend *b, uint64_t fence);
enum fence_state device_fence_query(struct backend *b, uint64_t fence);
int device_fence_order(struct backend *b, uint64_t fence);
int device_fence_wait(struct backend *b, uint64_t fence, uint64_t timeout_ns);
bool device_fence_await(struct backend *b, uint64_t timeout_ns);
void device_fence_drain_all(struct backend *b);

#endif
