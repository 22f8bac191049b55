/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device memory of the pools on its way to the host and back. On the park thread, behind the
 * gate (park.h). No lock; no wait but for the driver.
 */
#ifndef SHIM_MOVE_H
#define SHIM_MOVE_H

#include "shim/park/park.h"

#include <stdbool.h>
#include <stdint.h>

/* Before the gate is closed: makes the store and the staging memory. joins: the process is parked,
 * and the gate stays closed. ahead: also host memory for all bytes; a file has it in any case.
 * goes_on: asked between two steps. False, with r->why: the host or the folder has no room, or
 * there is nothing to copy with. */
bool move_prepare(const struct park_wish *w, bool joins, bool ahead, bool (*goes_on)(void),
                  struct park_receipt *r);
/* The pools hold their chunks, and what they need is copied. goes_on: asked between two steps.
 * False, with r->why: nothing changed, but for what move_let_go and move_forget take back. */
bool move_out(const struct park_wish *w, bool (*goes_on)(void), struct park_receipt *r);
/* One of the two follows: the held memory goes back to the driver, or the chunks are let go. */
void move_release(struct park_receipt *r);
void move_let_go(void);
/* After move_let_go: forgets what was copied. */
void move_forget(void);
/* Chunks are away: gives host memory back that was made ready and not needed. */
void move_settle(void);

/* While the process is off the GPU as a whole, no host memory is registered for the copies. */
void move_pin(bool pins);

/* What each device needs for all to come back; by device. What was freed meanwhile needs none. */
void move_needs(uint64_t needs_bytes[]);
/* Brings all chunks and their bytes back, or nothing. 0, or the driver's code.
 * CUDA_ERROR_OPERATING_SYSTEM: the file that has the bytes cannot be read. */
int move_back(void);
/* Where the bytes are: "host", or the folder. Static, until move_finish. */
const char *move_place(void);
/* No chunk is away. move_unstage ends the workers, and frees the staging memory if no GPU work
 * runs: to unregister it waits for such work. move_finish frees the store, or what retained copies
 * may not keep of it (retain.h), whatever runs. */
void move_unstage(bool is_idle);
void move_finish(void);
/* No chunk is away: frees the retained copies. */
void move_drop(void);
/* The same if their time is over, if the host lacks memory, or if GPUCACHE_PARK says so.
 * Returns when to look again (clock_now_ns); UINT64_MAX: there are none. */
uint64_t move_tend(uint64_t now_ns);
/* Host memory of retained copies while nothing is away. Any thread. */
uint64_t move_retained_bytes(void);

#endif
