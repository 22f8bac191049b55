/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Freed memory that GPU work may still use: blocks and slab objects in the order of their frees,
 * which is the order of their epochs. All functions want the pool's lock held.
 */
#ifndef POOL_PENDING_H
#define POOL_PENDING_H

#include "pool/block.h"

struct pool;
struct slab;

struct pendings {
    struct item *head, **tail;
    uint64_t newest_epoch; /* of the item at the tail */
    unsigned passed;       /* requests since one asked what is complete */
    unsigned ask_after;    /* ask again after so many; each question in vain doubles it */
};

void pending_init(struct pendings *q);
/* Adds a block (its state is PENDING from here on), or object slot of a slab, freed in the given
 * epoch. Memory whose epoch is ready becomes free memory at once. */
void pending_settle_block(struct pool *p, struct block *b, uint64_t epoch);
void pending_settle_object(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch);
/* One batch of ready memory becomes free memory, the oldest first: the lock is held for about 30
 * us. True: there was something, and perhaps there is more.
 *
 * Safety:
 * 1. Ready memory stays ready unless the pool is lost. Then nothing is ready (fence_publish). Each
 *    batch looks again.
 * 2. Memory that is retired later is merely available later.
 *
 * Liveness:
 * 3. A caller that would otherwise order, wait, grow, give back or fail calls until there is no
 *    more, with state_yield in between.
 * 4. The queue is finite, and memory that joins it meanwhile is ready only if its own work is. */
bool pending_retire(struct pool *p);
/* All batches. Drops the lock between two. True: there was something. */
bool pending_retire_all(struct pool *p);
/* Epoch of the oldest pending memory that would serve a request of the zone by itself. 0: a bounded
 * look found none. */
uint64_t pending_find(const struct pool *p, const struct zone *z, uint64_t size_bytes);

/* With several streams: how much memory may be pending, or idle in their place, before later work
 * waits for earlier work. More would let the streams overlap more, but a small program would be
 * several times its size. */
uint64_t pending_run_ahead_bytes(const struct pool *p);

/* Before a request is served: pending memory may fit it better than free memory, and cutting up
 * free blocks meanwhile scatters the free memory. Without these two calls, peak reserved of cupy is
 * 1.038 of peak live instead of 1.020 (replay). The mean of 26 synthetic programs is 1.032 instead
 * of 1.025. */
/* Is enough pending for the request, and a part (PENDING_LOOK_SHIFT) of what is reserved more than
 * at the latest look? Without the second condition the replay of maskrcnn asks what is complete
 * 13400 times instead of 3300 (two streams, work of 20 ms). */
bool pending_is_much(const struct pool *p, struct zone *z, uint64_t size_bytes);
/* Asks what is complete, unless a free block fits exactly. order: later work may be ordered behind
 * the rest, because there is but one stream. Drops the lock. */
void pending_look(struct pool *p, struct zone *z, uint64_t size_bytes, bool order);
/* Should the request ask what is complete, because its magazine holds an item that would serve it?
 * Questions in vain make the next one later: where the GPU is far behind, a question takes as long
 * as two requests. Without that the same replay asks 19200 times. */
bool pending_may_ask(struct pool *p);
/* The question was not in vain. */
void pending_ask_soon(struct pool *p);

#endif
