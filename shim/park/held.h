/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The contexts whose pools hold chunks for a park, or have them back for a wake. None of them ends
 * meanwhile: they are pinned. On the park thread, behind the gate (park.h). No lock.
 */
#ifndef SHIM_PARK_HELD_H
#define SHIM_PARK_HELD_H

#include "shim/context/context.h"
#include "shim/park/park.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct held {
    struct context *contexts[CONTEXTS_MAX];
    size_t count;
};
extern struct held held;

/* May a park of the device take memory of the context? device -1: of any. */
bool held_may_have(const struct context *c, int device);
/* What a park of the device could take, about; 0: nothing. Any thread; takes a lock of the pools.
 */
uint64_t held_bytes_here(int device);
/* A park: the pools hold the chunks that it wants. */
void held_take(const struct park_wish *w);
/* The held chunks go away, or are let go. r: where to count what went; may be NULL. */
void held_end(bool away, struct park_receipt *r);

/* A wake: all pools with chunks away have their device memory again (0), or the code of the first
 * that has not. Those that have it are held. */
int held_map(void);
/* Their bytes are back too. */
void held_wake_end(void);
/* Is it the error of a context that will serve nothing any more? Then its memory needs no wake. */
bool held_is_lost(struct context *c, int code);

#endif
