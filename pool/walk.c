/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool_list_live and pool_list_chunks: what a pool holds, as lists. The walk goes by chunk and
 * granule through the map, under the pool's lock. Threads that take and give by their magazines go
 * on meanwhile, so a block may be handed out or come back while it is looked at.
 */
#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/pool.h"
#include "pool/state.h"

struct walk {
    struct pool_range *out;
    size_t max, count;
    const struct chunk *chunk; /* only blocks that start here */
};

static void note_range(struct walk *w, uint64_t addr, uint64_t size_bytes)
{
    if (w->count < w->max)
        w->out[w->count] = (struct pool_range){addr, size_bytes};
    w->count++;
}

static void note_item(struct walk *w, const struct item *item)
{
    if (item_is_held(item))
        note_range(w, item_addr(item), item_requested_bytes(item));
}

static bool starts_here(const struct walk *w, const struct block *b)
{
    return b && b->addr >= w->chunk->addr && b->addr - w->chunk->addr < w->chunk->size_bytes;
}

/* A block, or all objects of a slab. */
static void note_block(struct walk *w, const struct block *b)
{
    if (!starts_here(w, b))
        return;
    if (b->state == BLOCK_LIVE)
        note_item(w, &b->item);
    const struct slab *s = b->state == BLOCK_SLAB ? block_slab(b) : NULL;
    for (unsigned i = 0; s && i < s->object_count; i++)
        note_item(w, &s->items[i]);
}

static void note_starts(struct walk *w, const _Atomic(struct block *) starts[2],
                        const _Atomic uint16_t start_units[2])
{
    for (int i = 0; i < 2; i++)
        if (atomic_load_explicit(&start_units[i], memory_order_acquire))
            note_block(w, atomic_load_explicit(&starts[i], memory_order_relaxed));
}

static void note_granule(struct walk *w, const struct granule *g, uint64_t addr)
{
    const struct map_page *pages = atomic_load_explicit(&g->pages, memory_order_acquire);
    for (unsigned i = 0; pages && i < GRANULE_PAGES; i++) {
        const struct map_page *page = &pages[i];
        if (atomic_load_explicit(&page->start_units[0], memory_order_acquire) != MAP_SLAB) {
            note_starts(w, page->starts, page->start_units);
            continue;
        }
        const struct block *b = atomic_load_explicit(&page->starts[0], memory_order_relaxed);
        if (b && b->addr == addr + i * SLAB_PAGE_BYTES) /* the slab's first page */
            note_block(w, b);
    }
    note_starts(w, g->starts, g->start_units);
}

static void note_chunk(struct walk *w, const struct pool *p, const struct chunk *c)
{
    w->chunk = c;
    for (uint64_t at = round_down(c->addr, GRANULE_BYTES); at < c->addr + c->size_bytes;
         at += GRANULE_BYTES) {
        const struct granule *g = map_find(at);
        if (g && atomic_load_explicit(&g->pool, memory_order_relaxed) == p)
            note_granule(w, g, at);
    }
}

/* Each chunk, or what is live on each. */
static size_t list_ranges(struct pool *p, struct pool_range *out, size_t max, bool live)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct walk w = {.out = out, .max = max};
    state_lock(p);
    /* An abandoned pool holds nothing. A thread may be making it another context's, without the
     * lock (pool_revive). */
    for (int i = 0; i < 2 && !p->abandoned; i++)
        list_for_each(n, tmp, &zones[i]->chunks) {
            const struct chunk *c = list_entry(n, struct chunk, all);
            if (live)
                note_chunk(&w, p, c);
            else if (c->park != CHUNK_AWAY)
                note_range(&w, c->addr, c->size_bytes);
        }
    state_unlock(p);
    return w.count;
}

size_t pool_list_live(struct pool *p, struct pool_range *out, size_t max)
{
    return list_ranges(p, out, max, true);
}

size_t pool_list_chunks(struct pool *p, struct pool_range *out, size_t max)
{
    return list_ranges(p, out, max, false);
}
