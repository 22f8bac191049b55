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
 */
#ifndef SHIM_CAPTURE_H
#define SHIM_CAPTURE_H

#include "shim/hooks.h"

#include <stdbool.h>

/* True: no capture will begin before capture_let_go. False: one is open; nothing to let go. */
bool capture_hold_off(void);
void capture_let_go(void);
bool capture_open(void);
/* Waits until none is open; false: not within that time, or the calling thread began one itself, whose end waits
 * for the caller. */
bool capture_await(uint64_t timeout_ns);
/* As capture_hold_off, after such a wait. */
bool capture_hold_off_patiently(uint64_t timeout_ns);
/* The context is gone, and its captures with it. */
void capture_forget(CUcontext ctx);

#endif
