/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool_check: walks a pool and names the first broken invariant of pool/README.md. For quiet
 * moments: what another thread has in work is BUSY and counted as such.
 */
#include "pool/chunk.h"
#include "pool/magazine.h"
#include "pool/magazine_pool.h"
#include "pool/map.h"
#include "pool/pool.h"
#include "pool/state.h"

#include <sched.h>

#define STATES 8

struct sums {
    uint64_t bytes[STATES]; /* by block state, holes included */
    uint64_t live_bytes, live_count, requested_bytes;
    uint64_t cached_bytes, cached_count; /* live, but in a magazine */
    uint64_t slack_bytes;                /* of segments */
    uint64_t parked_count, away_bytes;   /* chunks that are held or away; of the latter */
    uint64_t starts;     /* words of the map that lead to live memory, in either zone */
    uint64_t open_slabs; /* with free objects */
};

#define CHECK(condition, words)                                                                    \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return words;                                                                          \
    } while (0)

static bool in_list(const struct list *head, const struct list *node)
{
    for (const struct list *n = head->next; n != head; n = n->next)
        if (n == node)
            return true;
    return false;
}

/* Do all chunks that b touches say that something in them is known outside? */
static bool is_told(const struct block *b)
{
    for (uint64_t at = round_down(b->addr, GRANULE_BYTES); at < block_end(b); at += GRANULE_BYTES) {
        const struct chunk *c = map_chunk(at, b->zone->pool);
        if (!c || !c->exposed)
            return false;
    }
    return true;
}

static const char *check_slab(const struct slab *s, struct sums *sums)
{
    unsigned free_count = 0;
    CHECK(block_slab(s->block) == s, "a slab and its block point to each other");
    CHECK(s->block->addr % SLAB_PAGE_BYTES == 0, "slabs start at multiples of their page");
    for (unsigned i = 0; i < s->object_count; i++) {
        const struct item *o = &s->items[i];
        bool is_free = s->free_map[i / 64] >> (i % 64) & 1;
        CHECK(!(is_free && o->live), "a free object is not live");
        free_count += is_free;
        const struct item *item = &s->items[i];
        bool held = item_is_held(item);
        sums->cached_bytes += o->live && !held ? s->object_bytes : 0;
        sums->cached_count += o->live && !held;
        CHECK(o->live || !held, "what the program holds is live");
        CHECK(!o->exposed || is_told(s->block), "a chunk knows that something in it is exposed");
        CHECK(!held || item_addr(item) == slab_object_addr(s, i),
              "what the program holds knows its address");
        if (held) {
            sums->live_bytes += s->object_bytes;
            sums->requested_bytes += item_requested_bytes(item);
            sums->live_count++;
        }
    }
    sums->starts += s->block->size_bytes / SLAB_PAGE_BYTES;
    sums->open_slabs += s->free_count > 0;
    CHECK(s->free_count + s->dead_count <= s->object_count,
          "a slab's objects are free, dead or in use");
    CHECK(free_count == s->free_count, "a slab's count of free objects is that of its bitmap");
    return NULL;
}

static const char *check_block(const struct block *b, struct sums *sums)
{
    CHECK(b->size_bytes && b->size_bytes % UNIT_BYTES == 0 && b->addr % UNIT_BYTES == 0,
          "blocks are whole units");
    CHECK(!b->next || (b->next->prev == b && b->next->addr == block_end(b)),
          "neighbours touch and know each other");
    sums->bytes[b->state] += b->size_bytes;
    const struct granule *g = map_find(b->addr);
    switch (b->state) {
    case BLOCK_FREE:
        CHECK(!b->next || b->next->state != BLOCK_FREE, "free neighbours are merged");
        CHECK(b->item.epoch <= b->zone->pool->fences.open_epoch,
              "no block is freed in a later epoch");
        break;
    case BLOCK_HOLE:
        CHECK(!b->next || b->next->state != BLOCK_HOLE, "neighbouring holes are merged");
        CHECK(b->addr % GRANULE_BYTES == 0 && b->size_bytes % GRANULE_BYTES == 0,
              "holes are whole granules");
        return NULL;
    case BLOCK_LIVE:
        CHECK(map_block(g, b->addr) == b, "a live block is found by its address");
        sums->starts++;
        if (b->zone->kind == ZONE_LARGE && !b->zone->pool->arena)
            sums->slack_bytes += b->item.slack_bytes;
        CHECK(item_requested_bytes(&b->item) <= b->size_bytes, "a block holds what was asked for");
        if (!item_is_held(&b->item)) {
            sums->cached_bytes += b->size_bytes;
            sums->cached_count++;
            break;
        }
        CHECK(item_addr(&b->item) == b->addr, "what the program holds knows its address");
        sums->live_bytes += b->size_bytes;
        sums->requested_bytes += item_requested_bytes(&b->item);
        sums->live_count++;
        break;
    case BLOCK_SLAB:
        CHECK(map_block(g, b->addr) == b, "a slab is found by its address");
        return check_slab(block_slab(b), sums);
    case BLOCK_PENDING:
        CHECK(!map_block(g, b->addr) || map_block(g, b->addr) != b, "a freed block is not found");
        break;
    case BLOCK_GHOST:
        CHECK(!g || !g->chunk || atomic_load(&g->pool) != b->zone->pool,
              "a ghost has no memory of its own");
        return NULL;
    case BLOCK_BUSY:
    case BLOCK_DEAD:
        break;
    }
    if (b->state != BLOCK_BUSY)
        for (uint64_t at = round_down(b->addr, GRANULE_BYTES); at < block_end(b);
             at += GRANULE_BYTES)
            CHECK(map_find(at) && map_find(at)->chunk, "committed blocks lie on chunks");
    CHECK(!b->item.exposed || b->state == BLOCK_BUSY || is_told(b),
          "a chunk knows that something in it is exposed");
    return NULL;
}

/* An arena's zone is one chain of blocks, so everything can be walked. */
static const char *check_arena(const struct zone *z, struct sums *sums)
{
    uint64_t before[STATES], binned, end = z->base;
    const char *words;
    for (int i = 0; i < STATES; i++)
        before[i] = sums->bytes[i];
    CHECK(z->first && z->first->addr == z->base && !z->first->prev, "an arena starts at its base");
    for (const struct block *b = z->first; b; b = b->next) {
        words = check_block(b, sums);
        CHECK(!words, words);
        CHECK(b->zone == z, "blocks know their zone");
        CHECK(b->state != BLOCK_HOLE || in_list(&z->holes, &b->link), "holes are listed");
        end = block_end(b);
    }
    CHECK(end == z->base + z->size_bytes, "an arena's blocks cover it");
    words = placement_check(z, &binned);
    CHECK(!words, words);
    CHECK(binned == sums->bytes[BLOCK_FREE] - before[BLOCK_FREE], "every free block is in a bin");
    return NULL;
}

/* NULL: it is an object of a slab. */
static const struct block *own_block(const struct item *i)
{
    return i->slot == PENDING_BLOCK ? list_entry(i, struct block, item) : NULL;
}

static bool lies_on(const struct block *b, const struct chunk *c)
{
    return b && b->addr >= c->addr && b->addr < c->addr + c->size_bytes;
}

/* Any block of a segment, in whichever list. If none is in a list, all blocks are live, and the
 * first is known by its address. NULL: none is known. */
static const struct block *block_within(const struct zone *z, const struct chunk *c)
{
    for (const struct block *b = placement_largest(&z->placement); b;
         b = placement_next(&z->placement, b))
        if (lies_on(b, c))
            return b;
    for (const struct item *i = z->pool->pendings.head; i; i = i->next)
        if (lies_on(own_block(i), c))
            return own_block(i);
    for (const struct list *n = z->dead.next; n != &z->dead; n = n->next)
        if (lies_on(list_entry(n, struct block, link), c))
            return list_entry(n, struct block, link);
    return map_block(map_find(c->addr), c->addr);
}

/* Each segment is a chain of blocks of its own. */
static const char *check_segments(const struct zone *z, struct sums *sums)
{
    uint64_t binned, free_before = sums->bytes[BLOCK_FREE];
    const char *words;
    for (const struct list *n = z->chunks.next; n != &z->chunks; n = n->next) {
        const struct chunk *c = list_entry(n, struct chunk, all);
        const struct block *b = block_within(z, c);
        uint64_t end = c->addr;
        while (b && b->prev)
            b = b->prev;
        CHECK(b && b->addr == c->addr, "a segment starts with a block");
        CHECK(z->kind == ZONE_SMALL || !b->next, "a large segment is one block");
        for (; b; b = b->next) {
            words = check_block(b, sums);
            CHECK(!words, words);
            CHECK(b->zone == z, "blocks know their zone");
            end = block_end(b);
        }
        CHECK(end == c->addr + c->size_bytes, "a segment's blocks cover it");
    }
    words = placement_check(z, &binned);
    CHECK(!words, words);
    CHECK(binned == sums->bytes[BLOCK_FREE] - free_before, "every free block is in a bin");
    return NULL;
}

/* The item of the block or object that is live to the pool and starts at addr. NULL: there is
 * none. */
static const struct item *live_item(const struct pool *p, uint64_t addr)
{
    const struct granule *g = map_find(addr);
    const struct block *b = g && atomic_load(&g->pool) == p ? map_block(g, addr) : NULL;
    if (!b || b->state != BLOCK_SLAB)
        return b && b->state == BLOCK_LIVE ? &b->item : NULL;
    int slot = slab_slot_around(b->item.slab, addr);
    return slot >= 0 && b->item.slab->items[slot].live ? &b->item.slab->items[slot] : NULL;
}

static const char *check_cell(const struct pool *p, const struct magazine_row *row, unsigned at,
                              const struct magazine_cell *cell)
{
    const struct item *item = cell->item;
    CHECK(!item_is_held(item), "what lies in a magazine is not the program's");
    CHECK(item_row(item) == at || (item_row(item) == MAGAZINE_LARGE && at == MAGAZINE_MORE),
          "what lies in a magazine lies in its own row");
    CHECK(item_units(item) == row->units, "a row of a magazine holds one size");
    CHECK(cell->epoch <= p->fences.open_epoch, "nothing in a magazine was freed in a later epoch");
    CHECK(live_item(p, item_addr(item)) == item, "what lies in a magazine is live to the pool");
    return NULL;
}

static const char *check_magazine(const struct pool *p, const struct magazine *m, struct sums *kept)
{
    int64_t cached = MAGAZINE_EMPTY;
    for (unsigned at = MAGAZINE_OBJECTS; at < MAGAZINE_ROWS; at++) {
        const struct magazine_row *row = &m->rows[at];
        CHECK(row->newest <= row->last, "a row of a magazine has an end");
        for (unsigned i = 1; i <= row->newest / sizeof row->cells[0]; i++) {
            const char *words = check_cell(p, row, at, &row->cells[i]);
            CHECK(!words, words);
            cached += row->cells[i].item->magazine_cost +
                      (at == MAGAZINE_MORE ? MAGAZINE_COST(0, row->units) : 0);
            kept->cached_bytes += (uint64_t)row->units << UNIT_SHIFT;
            kept->cached_count++;
        }
    }
    CHECK(m->cached == cached, "a magazine counts what lies in it");
    return NULL;
}

/* Takes the lock of each, though their threads should be quiet. */
static const char *check_magazines(const struct pool *p, const struct sums *sums)
{
    struct sums kept = {0};
    for (const struct list *n = p->magazines.next; n != &p->magazines; n = n->next) {
        struct magazine *m = list_entry(n, struct magazine, link);
        while (atomic_exchange_explicit(&m->locked, 1, memory_order_acquire))
            sched_yield();
        const char *words = check_magazine(p, m, &kept);
        magazine_unlock(m);
        CHECK(!words, words);
    }
    CHECK(kept.cached_bytes == sums->cached_bytes && kept.cached_count == sums->cached_count,
          "what is live, and not the program's, lies in one magazine");
    return NULL;
}

static const char *check_chunks(const struct zone *z, uint64_t *reserved_bytes, struct sums *sums)
{
    uint64_t bytes = 0;
    for (const struct list *n = z->chunks.next; n != &z->chunks; n = n->next) {
        const struct chunk *c = list_entry(n, struct chunk, all);
        CHECK(c->addr % GRANULE_BYTES == 0 && c->size_bytes % GRANULE_BYTES == 0,
              "chunks are whole granules");
        CHECK(c->zone == z, "chunks know their zone");
        for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES)
            CHECK(map_find(at)->chunk == c, "every granule of a chunk names it");
        bytes += c->size_bytes;
        sums->parked_count += c->park != CHUNK_HERE;
        sums->away_bytes += c->park == CHUNK_AWAY ? c->size_bytes : 0;
    }
    CHECK(bytes == z->chunk_bytes, "a zone counts the bytes of its chunks");
    *reserved_bytes += bytes;
    return NULL;
}

static const char *check_parked(const struct pool *p, const struct sums *sums)
{
    uint64_t count = 0, end = 0;
    for (const struct list *n = p->parked.next; n != &p->parked; n = n->next, count++) {
        const struct chunk *c = list_entry(n, struct chunk, parked);
        CHECK(c->park != CHUNK_HERE, "only chunks that are held or away are listed as parked");
        CHECK(!c->busy_block || c->park == CHUNK_AWAY,
              "nobody moves or releases a chunk that is held or back");
        CHECK(c->addr >= end, "parked chunks are listed by address");
        end = c->addr + c->size_bytes;
    }
    CHECK(count == sums->parked_count, "what is held or away is listed");
    CHECK(sums->away_bytes == p->stats.away_bytes && sums->away_bytes == pool_away_bytes(p),
          "away bytes are those of the chunks");
    return NULL;
}

/* What stands in two words of the map. */
static const char *check_starts(const struct zone *z, const _Atomic(struct block *) starts[2],
                                const _Atomic uint16_t start_units[2], uint64_t page_addr,
                                uint64_t *count)
{
    for (int i = 0; i < 2; i++) {
        const struct block *b = starts[i];
        bool slab = start_units[i] == MAP_SLAB;
        CHECK(!b == !start_units[i], "a start in the map has a block, and a block a start");
        if (!b)
            continue;
        ++*count;
        CHECK(b->zone == z && b->state == (slab ? BLOCK_SLAB : BLOCK_LIVE),
              "the map leads to what is live only");
        CHECK(slab ? i == 0 && page_addr - b->addr < b->size_bytes
                   : start_units[i] == map_unit_of(b->addr) + 1,
              "the map leads to a block from its place only");
    }
    return NULL;
}

/* Every way from the map to a block of the zone. */
static const char *check_map(const struct zone *z, uint64_t *starts)
{
    static const _Atomic uint16_t no_units[2];
    static const _Atomic(struct block *) none[2];
    for (const struct list *n = z->chunks.next; n != &z->chunks; n = n->next) {
        const struct chunk *c = list_entry(n, struct chunk, all);
        for (uint64_t at = c->addr; at < c->addr + c->size_bytes; at += GRANULE_BYTES) {
            const struct granule *g = map_find(at);
            bool large = z->kind == ZONE_LARGE;
            uint64_t before = *starts;
            const char *words = check_starts(z, g->starts, g->start_units, at, starts);
            CHECK(!words, words);
            CHECK(large || *starts == before, "only large blocks start in a granule's own words");
            CHECK(map_starts_large(at) == (*starts > before),
                  "a bit for each granule in which a large block starts");
            for (unsigned i = 0; i < GRANULE_PAGES; i++) {
                const struct map_page *page = g->pages ? &g->pages[i] : NULL;
                before = *starts;
                words =
                    check_starts(z, page ? page->starts : none, page ? page->start_units : no_units,
                                 at + i * SLAB_PAGE_BYTES, starts);
                CHECK(!words, words);
                CHECK(!large || *starts == before, "no large block starts in a page");
            }
        }
    }
    return NULL;
}

static const char *check_slab_lists(const struct slabs *slabs, uint64_t open_slabs)
{
    for (unsigned at = 0; at < 2 * SLAB_CLASSES; at++) {
        unsigned c = at / 2;
        bool empty = at % 2;
        const struct list *head = empty ? &slabs->empty[c] : &slabs->partial[c];
        for (const struct list *n = head->next; n != head; n = n->next) {
            const struct slab *s = list_entry(n, struct slab, link);
            CHECK(s->class_index == c && block_slab(s->block) == s && s->block->state == BLOCK_SLAB,
                  "a list of slabs holds those of its class");
            CHECK(s->free_count && empty == (s->free_count == s->object_count),
                  "a slab is in the list of its fullness");
            CHECK(open_slabs-- > 0, "a slab is in one list");
        }
    }
    CHECK(!open_slabs, "every slab with a free object is in a list");
    return NULL;
}

static const char *check_dead(const struct zone *z)
{
    uint64_t bytes = 0;
    for (const struct list *n = z->dead.next; n != &z->dead; n = n->next) {
        const struct block *b = list_entry(n, struct block, link);
        CHECK(is_told(b), "a chunk knows that something in it is dead");
        bytes += b->size_bytes;
    }
    CHECK(bytes == z->dead_bytes, "a zone counts its dead bytes");
    return NULL;
}

static const char *check_pending(const struct pool *p, uint64_t *bytes)
{
    uint64_t epoch = 0;
    for (const struct item *i = p->pendings.head; i; i = i->next) {
        CHECK(i->epoch >= epoch, "pending memory waits in the order of its epochs");
        epoch = i->epoch;
        *bytes += i->slot == PENDING_BLOCK ? list_entry(i, struct block, item)->size_bytes
                                           : i->slab->object_bytes;
    }
    return NULL;
}

static const char *check_fences(const struct fences *f)
{
    for (unsigned i = 0; i < f->ring.count; i++) {
        CHECK(f->ring.at[i].epoch < f->open_epoch, "only closed epochs have fences");
        CHECK(i == 0 || f->ring.at[i - 1].epoch < f->ring.at[i].epoch, "fences stand in order");
    }
    CHECK(f->complete_epoch < f->open_epoch && f->ordered_epoch < f->open_epoch,
          "nothing is complete before it is closed");
    return NULL;
}

static const char *check_peak(const struct pool *p)
{
    const struct pool_stats *s = &p->stats;
    CHECK(s->at_peak_requested_bytes + s->at_peak_rounding_bytes + s->at_peak_pending_bytes +
                  s->at_peak_whole_bytes + s->at_peak_cut_bytes + s->at_peak_small_bytes ==
              p->looked_peak_bytes,
          "what memory was for at its peak adds up to the peak");
    CHECK(s->reserved_bytes <= p->looked_peak_bytes &&
              p->looked_peak_bytes <= s->reserved_peak_bytes,
          "a peak of reserved memory is looked at");
    return NULL;
}

static const char *check_locked(const struct pool *p)
{
    const struct zone *zones[] = {&p->small, &p->large};
    struct sums sums = {0};
    uint64_t reserved_bytes = 0, pending_bytes = 0;
    const char *words;
    for (int i = 0; i < 2; i++) {
        uint64_t ignored;
        words = check_chunks(zones[i], &reserved_bytes, &sums);
        CHECK(!words, words);
        if (p->arena)
            words = check_arena(zones[i], &sums);
        else /* no block is known of a segment on its way out */
            words = p->unlocked_jobs ? placement_check(zones[i], &ignored)
                                     : check_segments(zones[i], &sums);
        CHECK(!words, words);
        words = p->unlocked_jobs ? NULL : check_dead(zones[i]);
        CHECK(!words, words);
    }
    words = check_parked(p, &sums);
    CHECK(!words, words);
    words = check_pending(p, &pending_bytes);
    CHECK(!words, words);
    words = check_fences(&p->fences);
    CHECK(!words, words);
    CHECK(pending_bytes == p->stats.pending_bytes, "pending bytes are counted");
    CHECK(pending_bytes == p->small.pending_bytes + p->large.pending_bytes,
          "pending bytes are counted by zone");
    CHECK(p->stats.reserved_bytes + p->planned_bytes <= p->most_reserved_bytes,
          "what is reserved and planned is within the limit");
    if (p->unlocked_jobs)
        return NULL;
    CHECK(!p->planned_bytes, "nothing is planned when nobody is at work");
    words = check_magazines(p, &sums);
    CHECK(!words, words);
    words = check_slab_lists(&p->slabs, sums.open_slabs);
    CHECK(!words, words);
    uint64_t starts = 0;
    for (int i = 0; i < 2; i++) {
        words = check_map(zones[i], &starts);
        CHECK(!words, words);
    }
    CHECK(starts == sums.starts,
          "the map leads to each block once, to a slab from each of its pages");
    CHECK(reserved_bytes == p->stats.reserved_bytes, "reserved bytes are those of the chunks");
    CHECK(sums.live_bytes == p->stats.allocated_bytes,
          "allocated bytes are those of the live blocks");
    CHECK(sums.requested_bytes == p->stats.requested_bytes, "requested bytes are counted");
    CHECK(sums.live_count == p->stats.live_blocks, "live blocks are counted");
    CHECK(sums.slack_bytes == p->slack_bytes, "the slack of segments is counted");
    CHECK(sums.bytes[BLOCK_GHOST] == p->ghost_bytes, "ghost bytes are counted");
    uint64_t committed = 0;
    for (int s = 0; s < STATES; s++)
        committed += s == BLOCK_HOLE || s == BLOCK_GHOST ? 0 : sums.bytes[s];
    CHECK(committed == reserved_bytes, "every committed byte is in one block");
    return check_peak(p);
}

const char *pool_check(struct pool *p)
{
    state_lock(p);
    magazines_sync_stats(p);
    const char *words = p->abandoned ? NULL : check_locked(p);
    state_unlock(p);
    return words;
}
