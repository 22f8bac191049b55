/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See map.h.
 */
#include "pool/map.h"

#include "pool/block.h"
#include "pool/chunk.h"
#include "pool/host.h"
#include "pool/spin.h"
#include "pool/zone.h"

#include <string.h>

#define LEAF_BITS MAP_LEAF_BITS
#define LEAF_GRANULES (UINT64_C(1) << LEAF_BITS)
#define LEAF_BYTES (LEAF_GRANULES * sizeof(struct granule))

_Atomic(struct granule *) map_roots[MAP_ROOTS];

static bool leaf_ensure(uint64_t root)
{
    if (atomic_load_explicit(&map_roots[root], memory_order_acquire))
        return true;
    struct granule *leaf = host_pages(LEAF_BYTES), *none = NULL;
    if (!leaf)
        return false;
    /* Two pools may need the same leaf at the same time; the loser drops his. */
    if (!atomic_compare_exchange_strong(&map_roots[root], &none, leaf))
        host_pages_free(leaf, LEAF_BYTES);
    return true;
}

bool map_ensure(uint64_t addr, uint64_t size_bytes)
{
    uint64_t end = addr + size_bytes;
    if (end > ADDR_LIMIT || end <= addr)
        return false;
    for (uint64_t root = addr >> (GRANULE_SHIFT + LEAF_BITS);
         root <= (end - 1) >> (GRANULE_SHIFT + LEAF_BITS); root++)
        if (!leaf_ensure(root))
            return false;
    return true;
}

/* It takes some microseconds, as often as its thread is run: about 30 ms. A pool whose context ended without a word
 * never forgets. */
#define AWAIT_TURNS 600

void map_await_forgotten(uint64_t addr, uint64_t size_bytes)
{
    for (uint64_t at = addr; at < addr + size_bytes; at += GRANULE_BYTES) {
        const struct granule *g = map_find(at);
        for (unsigned turn = 0; turn < AWAIT_TURNS && atomic_load_explicit(&g->pool, memory_order_acquire); turn++)
            spin_pause(turn);
    }
}

void map_claim(struct chunk *c, struct pool *owner)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        g->chunk = c;
        atomic_store_explicit(&g->pool, owner, memory_order_release);
    }
}

void map_disclaim(const struct chunk *c)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        g->chunk = NULL;
        atomic_store_explicit(&g->pool, NULL, memory_order_release);
    }
}

/* The owner last: the driver may have given the range to another pool, which waits for that. */
void map_forget(const struct chunk *c)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        if (!g)
            continue;
        for (int i = 0; i < 2; i++) {
            g->start_units[i] = 0;
            g->starts[i] = NULL;
        }
        for (uint64_t i = 0; g->units && i < GRANULE_UNITS; i++)
            atomic_store_explicit(&g->units[i], NULL, memory_order_relaxed);
    }
    map_disclaim(c);
}

static bool unit_write(uint64_t addr, struct block *b)
{
    struct granule *g = map_find(addr);
    if (!g->units) {
        g->units = host_pages(GRANULE_UNITS * sizeof *g->units);
        if (!g->units)
            return false;
    }
    atomic_store_explicit(&g->units[map_unit_of(addr)], b, memory_order_release);
    return true;
}

bool map_set(struct block *b)
{
    if (b->zone->kind == ZONE_SMALL) {
        uint64_t step = b->state == BLOCK_SLAB ? SLAB_PAGE_BYTES : b->size_bytes;
        for (uint64_t at = b->addr; at < block_end(b); at += step)
            if (!unit_write(at, b)) {
                map_clear(b);
                return false;
            }
        return true;
    }
    struct granule *g = map_find(b->addr);
    int i = g->starts[0] ? 1 : 0;
    atomic_store_explicit(&g->starts[i], b, memory_order_relaxed);
    atomic_store_explicit(&g->start_units[i], (uint16_t)(map_unit_of(b->addr) + 1), memory_order_release);
    return true;
}

void map_clear(const struct block *b)
{
    struct granule *g = map_find(b->addr);
    if (b->zone->kind == ZONE_SMALL) {
        uint64_t step = b->state == BLOCK_SLAB ? SLAB_PAGE_BYTES : b->size_bytes;
        for (uint64_t at = b->addr; at < block_end(b); at += step) {
            g = map_find(at);
            if (g->units)
                atomic_store_explicit(&g->units[map_unit_of(at)], NULL, memory_order_relaxed);
        }
        return;
    }
    int i = g->starts[0] == b ? 0 : 1;
    g->start_units[i] = 0;
    g->starts[i] = NULL;
}

static struct block *nearest_start(const struct granule *g, uint64_t addr, bool same_granule)
{
    struct block *found = NULL;
    if (g->units) {
        uint64_t unit = same_granule ? map_unit_of(addr) : GRANULE_UNITS - 1;
        for (uint64_t i = unit + 1; i-- > 0 && !found;)
            found = g->units[i];
    }
    for (int i = 0; i < 2; i++) {
        struct block *b = g->starts[i];
        if (b && b->addr <= addr && (!found || b->addr > found->addr))
            found = b;
    }
    return found;
}

struct block *map_block_around(uint64_t addr, const struct pool *owner)
{
    for (uint64_t at = round_down(addr, GRANULE_BYTES);; at -= GRANULE_BYTES) {
        const struct granule *g = map_find(at);
        if (!g || atomic_load_explicit(&g->pool, memory_order_relaxed) != owner || !g->chunk)
            return NULL;
        struct block *b = nearest_start(g, addr, at == round_down(addr, GRANULE_BYTES));
        if (b)
            return addr < block_end(b) ? b : NULL;
        if (!at)
            return NULL;
    }
}
