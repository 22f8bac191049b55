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
    struct pending *head, **tail;
};

void pending_init(struct pendings *q);
/* A block (state PENDING from here on), or object slot of a slab, freed in the given epoch. */
void pending_add_block(struct pool *p, struct block *b, uint64_t epoch);
void pending_add_object(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch);
/* Everything freed up to this epoch becomes free memory; true: there was something. */
bool pending_retire(struct pool *p, uint64_t epoch);
/* Epoch of the oldest pending memory that would serve a request of the zone by itself; 0: none seen
 * within a bounded look. */
uint64_t pending_find(const struct pool *p, const struct zone *z, uint64_t size_bytes);

#endif
