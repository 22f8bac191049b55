/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A ghost: addresses of an arena whose memory was moved. They keep their old mapping until the old
 * GPU work that uses it is complete. arena.h says why that is safe. All functions want the pool's
 * lock held.
 */
#ifndef POOL_GHOST_H
#define POOL_GHOST_H

#include <stdbool.h>

struct block;
struct pool;

/* A BUSY block becomes a ghost. Its epoch says which work it waits for. */
void ghost_add(struct block *b);
/* Unmaps the ghosts whose old work is complete, or all of them; their addresses become holes. Drops
 * the lock. */
void ghost_reap(struct pool *p, bool all);

#endif
