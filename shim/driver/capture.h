/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Stream captures. While one is open anywhere in the process, cuCtxRecordEvent, cuCtxWaitEvent and
 * synchronisation fail and destroy the program's capture (documented; measured too). This file
 * knows the open captures and keeps such calls and captures apart:
 *
 * 1. A thread that wants to make such a call (a holder) counts itself in capture_hold_off, then
 *    looks for open captures. If there is one, it takes its count back and does not call.
 * 2. A thread that begins a capture counts the capture as open, then waits until there is no
 *    holder, and only then calls the driver (capture_begins).
 * 3. Both orders are sequentially consistent, so at least one of the two threads sees the other.
 *
 * So no fence can be recorded while a capture is open, and a freed block that needs one is not
 * ready before the capture ends. An allocation that finds no other memory waits for that end
 * (wait_for_more in pool/alloc.c; capture_await), at most ten seconds. It does not wait if the
 * capture is its own thread's.
 *
 * A holder must not wait for GPU work: the work may be a kernel that waits for what the capturing
 * thread does next. So a thread that waits for all work of a context records an event, lets go,
 * and waits for the event (device_fence_drain). If the driver has no such event, the thread calls
 * capture_wait_begins, which says that only the beginning of the next call matters. The driver
 * looks for captures when a call begins, not while the call waits.
 */
#ifndef SHIM_CAPTURE_H
#define SHIM_CAPTURE_H

#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True: no capture begins before capture_let_go. False: one is open, and there is nothing to let
 * go. */
bool capture_hold_off(void);
void capture_let_go(void);
/* A holder is about to make a call that waits for GPU work. Captures are held off until the call
 * has had time to begin, and no longer. capture_wait_ends is to follow, then capture_let_go. */
void capture_wait_begins(void);
void capture_wait_ends(void);
bool capture_open(void);
/* Waits until none is open. False: not within that time, or the calling thread began an open one
 * itself, whose end would wait for the caller. Keeps errno. */
bool capture_await(uint64_t timeout_ns);
/* capture_hold_off, after such a wait. */
bool capture_hold_off_patiently(uint64_t timeout_ns);
/* The contexts that have captures, up to max of them. Returns how many. */
size_t capture_contexts(CUcontext *ctx, size_t max);

/* For the wrappers (shim/entry/stream.c). The functions that return a count have taken so many
 * captures off the open ones: the caller tells the other rooms (entry_captures_closed). */

/* Before the driver begins a capture. Returns when no holder is in its way. capture_began or
 * capture_failed is to follow. */
void capture_begins(void);
/* The driver has begun the capture on this stream. A default stream goes by CU_STREAM_LEGACY or
 * CU_STREAM_PER_THREAD. */
void capture_began(CUstream stream);
/* The driver has not begun it, so it no longer counts as open. */
void capture_failed(void);
/* The number of the stream's open capture. To be called before the driver ends the capture or the
 * stream. 0: there is none. */
uint64_t capture_number(CUstream stream);
/* Does the stream still capture after a call that was to end the capture failed with this code?
 * Asks the driver. Where it does not say, the code decides. */
bool capture_goes_on(CUstream stream, CUresult end);
/* That capture is over. May be called twice: at the end of the capture, and at the stream's. */
size_t capture_ended(uint64_t number);
/* The context has ended, and with it its captures and those of its green contexts. */
size_t capture_forget(CUcontext ctx);

#endif
