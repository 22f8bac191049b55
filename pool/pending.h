/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Freed memory that GPU work may still use: blocks and slab objects in the order of their frees, which
 * is the order of their epochs. All functions want the pool's lock held.
 */
#ifndef POOL_PENDING_H
#define POOL_PENDING_H

#include "pool/block.h"

struct pool;
struct slab;

struct pendings {
    struct piece *head, **tail;
    uint64_t newest_epoch; /* of what is at the tail */
    unsigned passed;       /* requests that could have asked what is complete, since one did */
    unsigned ask_after;    /* so many of them; doubled by each question in vain */
};

void pending_init(struct pendings *q);
/* A block (state PENDING from here on), or object slot of a slab, freed in the given epoch. */
void pending_add_block(struct pool *p, struct block *b, uint64_t epoch);
void pending_add_object(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch);
/* The same, but memory whose epoch is ready already becomes free memory at once. */
void pending_settle_block(struct pool *p, struct block *b, uint64_t epoch);
void pending_settle_object(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch);
/* One batch of what is ready becomes free memory, the oldest first: the lock is not held for longer
 * than about 30 us. True: there was something, and perhaps there is more.
 * Safety:
 * 1. What is ready stays so unless the pool is lost, and then nothing is (fence_publish). Each
 *    batch looks anew.
 * 2. What is retired later is merely available later.
 * Liveness:
 * 3. Who would otherwise order, wait, grow, give back or fail calls until there is no more, with
 *    state_breathe in between.
 * 4. The queue is finite, and what joins it meanwhile is ready only if its own work is. */
bool pending_retire(struct pool *p);
/* All batches. Drops the lock between two. True: there was something. */
bool pending_retire_all(struct pool *p);
/* Epoch of the oldest pending memory that would serve a request of the zone by itself; 0: none seen
 * within a bounded look. */
uint64_t pending_find(const struct pool *p, const struct zone *z, uint64_t size_bytes);

/* Before a request is served: what is pending may fit it better than what is free, and cutting up free
 * blocks meanwhile scatters the free memory. Replaying synthetic programs of several streams, peak reserved
 * was 7 % above peak live where nothing was looked at before a request missed; it is 4 % with this, and as
 * good where the driver is asked each time. */
/* Is there enough for the request, and a 64th of what is reserved more than at the latest look? */
bool pending_is_much(const struct pool *p, struct zone *z, uint64_t size_bytes);
/* Looks what is complete, unless a free block fits exactly. order: later work may be ordered behind what is
 * not, because there is but one stream. Drops the lock. */
void pending_look(struct pool *p, struct zone *z, uint64_t size_bytes, bool order);
/* Should a request that a magazine could serve, were its memory ready, ask what is complete? In vain ever more
 * seldom: where the GPU is far behind, a question takes as long as two requests. */
bool pending_may_ask(struct pool *p);
/* The question was not in vain. */
void pending_ask_soon(struct pool *p);

#endif
