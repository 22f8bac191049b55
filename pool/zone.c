/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See zone.h.
 */
#include "pool/zone.h"

#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"

void zone_init(struct zone *z, struct pool *p, enum zone_kind kind)
{
    z->pool = p;
    z->kind = kind;
    z->base = z->size_bytes = z->pending_bytes = z->looked_bytes = 0;
    z->chunk_bytes = z->dead_bytes = 0;
    z->first = NULL;
    list_init(&z->holes);
    list_init(&z->chunks);
    list_init(&z->dead);
    placement_init(&z->placement);
}

static struct block *block_new(struct zone *z, uint64_t addr, uint64_t size_bytes,
                               enum block_state state)
{
    struct block *b = host_cache_get(&z->pool->block_cache);
    if (b) {
        b->addr = addr;
        b->size_bytes = size_bytes;
        b->zone = z;
        b->state = state;
        atomic_store_explicit(&b->item.slab, NULL, memory_order_relaxed);
        b->item.epoch = b->item.slack_bytes = 0;
        b->item.exposed = b->item.sync_memops = false;
        list_init(&b->link);
    }
    return b;
}

bool zone_reserve(struct zone *z, uint64_t base, uint64_t size_bytes)
{
    z->first = block_new(z, base, size_bytes, BLOCK_HOLE);
    if (!z->first)
        return false;
    z->base = base;
    z->size_bytes = size_bytes;
    list_push_back(&z->holes, &z->first->link);
    return true;
}

struct block *zone_add_region(struct zone *z, uint64_t addr, uint64_t size_bytes,
                              enum block_state state)
{
    return block_new(z, addr, size_bytes, state);
}

void zone_drop_region(struct block *b)
{
    host_cache_put(&b->zone->pool->block_cache, b);
}

/* placement.h keeps free blocks by size: a change of size takes the block out and puts it in
 * again. */
static void resize(struct block *b, uint64_t addr, uint64_t size_bytes)
{
    if (b->state == BLOCK_FREE)
        placement_remove(&b->zone->placement, b);
    b->addr = addr;
    b->size_bytes = size_bytes;
    if (b->state == BLOCK_FREE)
        placement_insert(&b->zone->placement, b);
}

/* The rest of the reservation stands first: see placement_find_window. */
static void list_hole(struct block *b)
{
    if (b->next)
        list_push_back(&b->zone->holes, &b->link);
    else
        list_push_front(&b->zone->holes, &b->link);
}

struct block *zone_split(struct block *b, uint64_t addr)
{
    struct block *upper = block_new(b->zone, addr, block_end(b) - addr, b->state);
    upper->item.epoch = b->item.epoch;
    upper->was_free = b->was_free;
    upper->prev = b;
    upper->next = b->next;
    if (b->next)
        b->next->prev = upper;
    b->next = upper;
    resize(b, b->addr, addr - b->addr);
    if (b->state == BLOCK_FREE)
        placement_insert(&b->zone->placement, upper);
    else if (b->state == BLOCK_HOLE)
        list_hole(upper);
    else if (b->state == BLOCK_DEAD)
        list_push_back(&b->zone->dead, &upper->link);
    return upper;
}

/* b takes in its upper neighbour, whose record is free then. Both are out of every list. */
static void absorb_next(struct block *b)
{
    struct block *gone = b->next;
    b->size_bytes += gone->size_bytes;
    b->item.epoch = max_u64(b->item.epoch, gone->item.epoch);
    b->next = gone->next;
    if (gone->next)
        gone->next->prev = b;
    host_cache_put(&b->zone->pool->block_cache, gone);
}

struct block *zone_take(struct zone *z, uint64_t size_bytes, uint64_t align, enum block_state state)
{
    struct block *b = placement_find(&z->placement, size_bytes, align);
    if (!b || unlikely(!host_cache_ensure(&z->pool->block_cache, 2)))
        return NULL;
    uint64_t start = round_up(b->addr, align);
    if (start != b->addr)
        b = zone_split(b, start);
    if (b->size_bytes > size_bytes)
        zone_split(b, b->addr + size_bytes);
    placement_remove(&z->placement, b);
    b->state = state;
    return b;
}

struct block *zone_take_whole(struct zone *z, uint64_t size_bytes, uint64_t most_bytes,
                              enum block_state state)
{
    struct block *b = placement_find(&z->placement, size_bytes, UNIT_BYTES);
    if (!b || b->size_bytes > most_bytes)
        return NULL;
    placement_remove(&z->placement, b);
    b->state = state;
    return b;
}

bool zone_would_cut(const struct zone *z, uint64_t size_bytes)
{
    const struct block *best = placement_find(&z->placement, size_bytes, UNIT_BYTES);
    return best && best->size_bytes != size_bytes;
}

static struct block *merge_same(struct block *b)
{
    if (b->next && b->next->state == b->state) {
        list_remove(&b->next->link);
        absorb_next(b);
    }
    if (b->prev && b->prev->state == b->state) {
        b = b->prev;
        list_remove(&b->link);
        absorb_next(b);
    }
    return b;
}

/* Makes b a free block, merged. The caller has stamped its chunks. */
static void insert_free(struct block *b)
{
    struct placement *pl = &b->zone->placement;
    b->state = BLOCK_FREE;
    b->item.exposed = b->item.sync_memops = false;
    atomic_store_explicit(&b->item.slab, NULL, memory_order_relaxed);
    if (b->next && b->next->state == BLOCK_FREE) {
        placement_remove(pl, b->next);
        absorb_next(b);
    }
    if (b->prev && b->prev->state == BLOCK_FREE) {
        b = b->prev;
        placement_remove(pl, b);
        absorb_next(b);
    }
    placement_insert(pl, b);
}

void zone_end_live(struct block *b)
{
    struct pool *p = b->zone->pool;
    map_clear(b);
    if (!p->arena && b->zone->kind == ZONE_LARGE)
        p->slack_bytes -= b->item.slack_bytes;
}

/* Notes when the chunks of b were last used. The walk costs more than the rest of a free, so it is
 * made only for IDLE_TIMEOUT. */
static void stamp_chunks(const struct block *b)
{
    const struct pool *p = b->zone->pool;
    if (likely(!p->config.idle_timeout_ns))
        return;
    for (uint64_t at = b->addr; at < block_end(b);) {
        struct chunk *c = map_chunk(at, p);
        if (unlikely(!c))
            return;
        c->idle_since_ns = p->now_ns;
        at = c->addr + c->size_bytes;
    }
}

void zone_give(struct block *b)
{
    if (b->state != BLOCK_BUSY)
        stamp_chunks(b);
    insert_free(b);
}

void zone_bury(struct block *b)
{
    stamp_chunks(b);
    b->state = BLOCK_DEAD;
    b->zone->dead_bytes += b->size_bytes;
    list_push_back(&b->zone->dead, &b->link);
}

void zone_make_hole(struct block *b)
{
    b->state = BLOCK_HOLE;
    b->item.epoch = 0;
    b = merge_same(b);
    list_hole(b);
}

struct block *zone_seize(struct block *inside, uint64_t addr, uint64_t size_bytes)
{
    struct block *b = inside;
    while (b->addr > addr)
        b = b->prev;
    if (b->addr < addr)
        b = zone_split(b, addr);
    struct block *last = b;
    while (block_end(last) < addr + size_bytes)
        last = last->next;
    if (block_end(last) > addr + size_bytes)
        zone_split(last, addr + size_bytes);
    for (struct block *at = b;; at = at->next) {
        if (at->state == BLOCK_FREE)
            placement_remove(&at->zone->placement, at);
        else {
            list_remove(&at->link);
            at->zone->dead_bytes -= at->size_bytes;
        }
        at->state = BLOCK_BUSY;
        at->was_free = true;
        if (block_end(at) == addr + size_bytes)
            break;
    }
    while (b->size_bytes < size_bytes)
        absorb_next(b);
    return b;
}
