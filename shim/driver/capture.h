/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Stream captures: while one is open anywhere in the process, cuCtxRecordEvent, cuCtxWaitEvent and
 * synchronisation would fail and destroy the program's capture (measured; so documented too). This file
 * knows the open captures and keeps the two apart.
 *
 * The argument: a caller of capture_hold_off first announces himself, then looks for open captures; the
 * start of a capture is first announced, then waits until nobody is announced (a record takes
 * microseconds), and only then reaches the driver. Both orders are sequentially consistent, so one of
 * the two always sees the other.
 *
 * Captures must never be held off while a thread waits for GPU work: the work may be a kernel that
 * waits for what the capturing thread does next. So who waits for all work of a context records an
 * event, lets go, and waits for the event (device_fence_drain). Where there is no such event,
 * capture_wait_begins says that only the beginning of the call matters: the driver looks for
 * captures when a call begins, not while it waits.
 */
#ifndef SHIM_CAPTURE_H
#define SHIM_CAPTURE_H

#include "shim/driver/hooks.h"

#include <stdbool.h>

/* True: no capture will begin before capture_let_go. False: one is open; nothing to let go. */
bool capture_hold_off(void);
void capture_let_go(void);
/* Who holds captures off makes a call that waits for GPU work: captures are held off until the call
 * has had time to begin, and no longer. capture_wait_ends is to follow, and then capture_let_go. */
void capture_wait_begins(void);
void capture_wait_ends(void);
bool capture_open(void);
/* Waits until none is open; false: not within that time, or the calling thread began one itself, whose end waits
 * for the caller. */
bool capture_await(uint64_t timeout_ns);
/* As capture_hold_off, after such a wait. */
bool capture_hold_off_patiently(uint64_t timeout_ns);
/* The context is gone, and its captures with it; so are those of its green contexts. */
void capture_forget(CUcontext ctx);
/* The contexts that have captures, up to max of them. Returns how many. */
size_t capture_contexts(CUcontext *ctx, size_t max);

#endif
