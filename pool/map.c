/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See map.h.
 */
#include "pool/map.h"

#include "pool/block.h"
#include "pool/chunk.h"
#include "pool/host_memory.h"
#include "pool/tuning.h"
#include "pool/zone.h"

#define LEAF_BITS MAP_LEAF_BITS
/* So many records fit into a page of host memory. */
#define TOUCHED_BY_ONE (HOST_PAGE_BYTES / sizeof(struct granule))
#define LEAF_GRANULES (UINT64_C(1) << LEAF_BITS)
/* A leaf has its records first. Behind them a bit for each record says whether a block of the large
 * zone starts there. These bits lead from the middle of a large block to its start. The pages of
 * the small zone come last; their memory is not touched before they are used. */
struct leaf {
    struct granule granules[LEAF_GRANULES];
    _Atomic uint64_t large_starts[LEAF_GRANULES / 64];
    struct map_page pages[LEAF_GRANULES][GRANULE_PAGES];
};
/* A block of the small zone that ends in a granule starts at most so many granules below. */
#define SMALL_REACH 2
_Static_assert(SEGMENT_SHARED_MAX_BYTES <= SMALL_REACH * GRANULE_BYTES, "of any backing");

_Atomic(struct granule *) map_roots[MAP_ROOTS];

static struct leaf *leaf_of(uint64_t root)
{
    return (struct leaf *)(void *)atomic_load_explicit(&map_roots[root], memory_order_acquire);
}

static bool leaf_ensure(uint64_t root)
{
    if (atomic_load_explicit(&map_roots[root], memory_order_acquire))
        return true;
    struct granule *leaf = host_pages(sizeof(struct leaf)), *none = NULL;
    if (!leaf)
        return false;
    /* Two pools may need the same leaf at the same time; the slower one drops its own. */
    if (!atomic_compare_exchange_strong(&map_roots[root], &none, leaf))
        host_pages_free(leaf, sizeof(struct leaf));
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

void map_touch(uint64_t addr, uint64_t size_bytes)
{
    for (uint64_t at = addr; at < addr + size_bytes; at += GRANULE_BYTES * TOUCHED_BY_ONE) {
        struct pool *nobody = NULL;
        atomic_compare_exchange_strong(&map_find(at)->pool, &nobody, nobody);
    }
}

/* Other pools may have granules below the same word. */
static void mark_large(uint64_t addr, bool starts)
{
    uint64_t index = addr >> GRANULE_SHIFT, bit = UINT64_C(1) << index % 64;
    _Atomic uint64_t *word = &leaf_of(index >> LEAF_BITS)->large_starts[index % LEAF_GRANULES / 64];
    if (starts)
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(word, ~bit, memory_order_relaxed);
}

bool map_starts_large(uint64_t addr)
{
    uint64_t index = addr >> GRANULE_SHIFT;
    return leaf_of(index >> LEAF_BITS)->large_starts[index % LEAF_GRANULES / 64] >> index % 64 & 1;
}

static void page_clear(struct map_page *page)
{
    for (int i = 0; i < 2; i++) {
        atomic_store_explicit(&page->start_units[i], 0, memory_order_relaxed);
        atomic_store_explicit(&page->starts[i], NULL, memory_order_relaxed);
    }
}

static void clear_starts(struct granule *g, uint64_t addr)
{
    for (int i = 0; i < 2; i++) {
        g->start_units[i] = 0;
        g->starts[i] = NULL;
    }
    mark_large(addr, false);
    for (uint64_t i = 0; g->pages && i < GRANULE_PAGES; i++)
        page_clear(&g->pages[i]);
}

static bool belongs_to(const struct granule *g, const struct pool *owner)
{
    return atomic_load_explicit(&g->pool, memory_order_relaxed) == owner;
}

static void give_up(struct granule *g)
{
    g->chunk = NULL;
    atomic_store_explicit(&g->pool, NULL, memory_order_release);
}

void map_claim(struct chunk *c, struct pool *owner)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        g->chunk = c;
        atomic_store_explicit(&g->pool, owner, memory_order_release);
    }
}

/* Other pools claim under their own locks. */
bool map_claim_segment(struct chunk *c, struct pool *owner)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct pool *nobody = NULL;
        if (likely(atomic_compare_exchange_strong(&map_find(at)->pool, &nobody, owner)))
            continue;
        const struct chunk below = {.addr = c->addr, .size_bytes = at - c->addr};
        map_disclaim(&below, owner);
        return false;
    }
    map_claim(c, owner);
    return true;
}

void map_disclaim(const struct chunk *c, const struct pool *owner)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        if (likely(belongs_to(g, owner)))
            give_up(g);
    }
}

/* The owner last: the driver may have given the range to another pool. */
void map_forget(const struct chunk *c, const struct pool *owner)
{
    for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
        struct granule *g = map_find(at);
        if (likely(g && belongs_to(g, owner)))
            clear_starts(g, at);
    }
    map_disclaim(c, owner);
}

static struct map_page *page_of(uint64_t addr)
{
    struct granule *g = map_find(addr);
    uint64_t index = addr >> GRANULE_SHIFT;
    if (!g->pages)
        g->pages = leaf_of(index >> LEAF_BITS)->pages[index % LEAF_GRANULES];
    return &g->pages[(addr & (GRANULE_BYTES - 1)) / SLAB_PAGE_BYTES];
}

static void start_set(_Atomic(struct block *) starts[2], _Atomic uint16_t start_units[2],
                      struct block *b, uint64_t unit)
{
    int i = starts[0] ? 1 : 0;
    atomic_store_explicit(&starts[i], b, memory_order_relaxed);
    atomic_store_explicit(&start_units[i], (uint16_t)unit, memory_order_release);
}

static void start_clear(_Atomic(struct block *) starts[2], _Atomic uint16_t start_units[2],
                        const struct block *b)
{
    int i = starts[0] == b ? 0 : 1;
    start_units[i] = 0;
    starts[i] = NULL;
}

void map_set(struct block *b)
{
    uint64_t unit = map_unit_of(b->addr) + 1;
    if (b->zone->kind == ZONE_LARGE) {
        struct granule *g = map_find(b->addr);
        start_set(g->starts, g->start_units, b, unit);
        mark_large(b->addr, true);
        return;
    }
    bool slab = b->state == BLOCK_SLAB;
    for (uint64_t at = b->addr; at < (slab ? block_end(b) : b->addr + 1); at += SLAB_PAGE_BYTES) {
        struct map_page *page = page_of(at);
        start_set(page->starts, page->start_units, b, slab ? MAP_SLAB : unit);
    }
}

void map_clear(const struct block *b)
{
    const struct pool *owner = b->zone->pool;
    if (b->zone->kind == ZONE_LARGE) {
        struct granule *g = map_find(b->addr);
        if (unlikely(!belongs_to(g, owner)))
            return;
        start_clear(g->starts, g->start_units, b);
        if (!g->starts[0] && !g->starts[1])
            mark_large(b->addr, false);
        return;
    }
    uint64_t end = b->state == BLOCK_SLAB ? block_end(b) : b->addr + 1;
    for (uint64_t at = b->addr; at < end; at += SLAB_PAGE_BYTES) {
        if (unlikely(!belongs_to(map_find(at), owner)))
            continue;
        struct map_page *page = page_of(at);
        start_clear(page->starts, page->start_units, b);
    }
}

/* The later of the two starts at or below addr. */
static struct block *nearest(const _Atomic(struct block *) starts[2], uint64_t addr)
{
    struct block *found = NULL;
    for (int i = 0; i < 2; i++) {
        struct block *b = starts[i];
        if (b && b->addr <= addr && (!found || b->addr > found->addr))
            found = b;
    }
    return found;
}

static struct block *nearest_in(const struct granule *g, uint64_t addr, bool same_granule)
{
    struct block *found = NULL;
    uint64_t page =
        same_granule ? (addr & (GRANULE_BYTES - 1)) / SLAB_PAGE_BYTES : GRANULE_PAGES - 1;
    for (uint64_t i = page + 1; g->pages && i-- > 0 && !found;)
        found = nearest(g->pages[i].starts, addr);
    return found ? found : nearest(g->starts, addr);
}

/* The next granule below in which a large block starts; NULL: none near enough to matter. */
static struct granule *large_below(uint64_t addr)
{
    for (uint64_t index = addr >> GRANULE_SHIFT; index > 0;) {
        struct leaf *leaf = leaf_of((index - 1) >> LEAF_BITS);
        if (!leaf)
            return NULL;
        uint64_t at = (index - 1) % LEAF_GRANULES;
        uint64_t word = leaf->large_starts[at / 64] & (UINT64_MAX >> (63 - at % 64));
        if (word)
            return &leaf->granules[at - at % 64 + log2_floor(word)];
        index -= at % 64 + 1;
    }
    return NULL;
}

struct block *map_block_around(uint64_t addr, const struct pool *owner)
{
    uint64_t at = round_down(addr, GRANULE_BYTES);
    const struct granule *g = map_find(at);
    for (int below = 0;; below++) {
        if (!g || atomic_load_explicit(&g->pool, memory_order_relaxed) != owner || !g->chunk)
            return NULL;
        struct block *b = nearest_in(g, addr, below == 0);
        if (b)
            return addr < block_end(b) ? b : NULL;
        if (below > SMALL_REACH || at < GRANULE_BYTES)
            return NULL;
        at -= GRANULE_BYTES;
        g = below < SMALL_REACH ? map_find(at) : large_below(at + GRANULE_BYTES);
    }
}
