/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/check.c: each invariant is broken by hand, and pool_check must name it. */
#include "pool/chunk.h"
#include "pool/magazine.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* A pool in which something of everything is there. */
static struct rig *busy(void **state)
{
    struct rig *r = expect_reuse(state, REUSE_READY);
    uint64_t a = rig_alloc(r, MIB(6));
    uint64_t b = rig_alloc(r, MIB(3)), c = rig_alloc(r, MIB(3));
    rig_alloc(r, 3000);
    uint64_t d = rig_alloc(r, 3000);
    rig_alloc(r, KIB(200));
    rig_free(r, a);
    rig_launch(r, 1, 0, 0);
    rig_trim(r, GIB(1), true);
    rig_free_behind(r, 1, MS(10), b);
    rig_free(r, d);
    rig_launch(r, 1, MS(10), c);
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
    return r;
}

static struct block *block_in(struct zone *z, enum block_state s)
{
    struct block *b = z->first;
    while (b && b->state != s)
        b = b->next;
    EXPECT(b, "the zone has a block in this state");
    return b;
}

RIG_TEST(broken_chains_are_named, busy(state))
{
    struct block *live = block_in(&r->pool->large, BLOCK_LIVE);
    BROKEN(live->size_bytes, live->size_bytes + 512, "neighbours touch and know each other");
    BROKEN(live->size_bytes, live->size_bytes + 1, "blocks are whole units");
    BROKEN(live->size_bytes, 0, "blocks are whole units");
    BROKEN(live->next->prev, NULL, "neighbours touch and know each other");
    BROKEN(live->zone, &r->pool->small, "blocks know their zone");
    struct block *pending = block_in(&r->pool->large, BLOCK_PENDING);
    BROKEN(pending->zone, &r->pool->small, "blocks know their zone");
    BROKEN(r->pool->large.first, NULL, "an arena starts at its base");
    BROKEN(r->pool->large.size_bytes, MIB(1), "an arena's blocks cover it");
}

RIG_TEST(broken_blocks_are_named, busy(state))
{
    struct block *live = block_in(&r->pool->large, BLOCK_LIVE);
    struct block *free_block = block_in(&r->pool->large, BLOCK_FREE);
    struct block *pending = block_in(&r->pool->large, BLOCK_PENDING);
    struct granule *g = map_find(live->addr);
    int at = g->starts[0] == live ? 0 : 1;
    BROKEN(g->start_units[at], 0, "a live block is found by its address");
    BROKEN(live->item.requested_bytes, MIB(300), "a block holds what was asked for");
    BROKEN(live->item.requested_bytes, live->item.requested_bytes - 1,
           "requested bytes are counted");
    BROKEN(free_block->item.epoch, 1000, "no block is freed in a later epoch");
    BROKEN(free_block->state, BLOCK_LIVE, "a live block is found by its address");
    g = map_find(pending->addr);
    at = g->starts[0] ? 1 : 0;
    g->starts[at] = pending;
    BROKEN(g->start_units[at], (uint16_t)(pending->addr % GRANULE_BYTES / UNIT_BYTES + 1),
           "a freed block is not found");
    g->starts[at] = NULL;
    BROKEN(pending->state, BLOCK_FREE, "free neighbours are merged");
    struct block *hole = block_in(&r->pool->large, BLOCK_HOLE);
    BROKEN(hole->state, BLOCK_DEAD, "committed blocks lie on chunks");
}

RIG_TEST(broken_slabs_are_named, busy(state))
{
    struct block *b = block_in(&r->pool->small, BLOCK_SLAB);
    struct slab *s = block_slab(b);
    BROKEN(s->free_count, (uint16_t)(s->free_count - 1),
           "a slab's count of free objects is that of its bitmap");
    BROKEN(s->items[5].live, true, "a free object is not live");
    BROKEN(s->block, block_in(&r->pool->small, BLOCK_FREE),
           "a slab and its block point to each other");
    struct granule *g = map_find(b->addr);
    struct map_page *page = &g->pages[(b->addr & (GRANULE_BYTES - 1)) / SLAB_PAGE_BYTES];
    BROKEN(page->start_units[0], 0, "a slab is found by its address");
    struct list *node = &s->link, *after = node->next;
    list_remove(node);
    expect_words(r, "every slab with a free object is in a list");
    list_push_front(&r->pool->slabs.empty[s->class_index], node);
    expect_words(r, "a slab is in the list of its fullness");
    list_remove(node);
    list_push_front(&r->pool->slabs.partial[0], node);
    expect_words(r, "a list of slabs holds those of its class");
    list_remove(node);
    list_push_front(after, node);
    list_remove(node);
    list_push_back(after, node);
}

RIG_TEST(broken_maps_are_named, busy(state))
{
    struct block *live = block_in(&r->pool->large, BLOCK_LIVE),
                 *gone = block_in(&r->pool->large, BLOCK_FREE);
    struct granule *g = map_find(live->addr);
    int other = g->starts[0] == live ? 1 : 0;
    EXPECT(!g->starts[other], "nothing else starts there");
    BROKEN(g->start_units[other], 7, "a start in the map has a block, and a block a start");
    g->start_units[other] = 7;
    BROKEN(g->starts[other], gone, "the map leads to what is live only");
    BROKEN(g->starts[other], live, "the map leads to a block from its place only");
    g->start_units[other] = g->start_units[!other];
    BROKEN(g->starts[other], live,
           "the map leads to each block once, to a slab from each of its pages");
    g->start_units[other] = 0;
    struct block *slab = block_in(&r->pool->small, BLOCK_SLAB);
    g = map_find(slab->addr);
    g->start_units[0] = 1;
    BROKEN(g->starts[0], slab, "the map leads to what is live only");
    g->start_units[0] = MAP_SLAB;
    BROKEN(g->starts[0], slab, "only large blocks start in a granule's own words");
    g->start_units[0] = 0;
}

RIG_TEST(broken_bins_and_lists_are_named, busy(state))
{
    struct placement *bins = &r->pool->large.placement;
    struct block *f = block_in(&r->pool->large, BLOCK_FREE);
    unsigned word = 0;
    while (!bins->map[word])
        word++;
    BROKEN(bins->map[word], 0, "the bitmap tells which bins hold blocks");
    BROKEN(f->zone, &r->pool->small, "blocks know their zone");
    placement_remove(bins, f);
    expect_words(r, "every free block is in a bin");
    placement_insert(bins, f);
    struct block *hole = block_in(&r->pool->large, BLOCK_HOLE);
    list_remove(&hole->link);
    expect_words(r, "holes are listed");
    list_push_back(&r->pool->large.holes, &hole->link);
}

RIG_TEST(broken_chunks_are_named, busy(state))
{
    struct chunk *c = list_entry(r->pool->large.chunks.next, struct chunk, all);
    BROKEN(c->zone, &r->pool->small, "chunks know their zone");
    BROKEN(c->size_bytes, c->size_bytes - 512, "chunks are whole granules");
    BROKEN(map_find(c->addr)->chunk, (struct chunk *)list_entry(c->all.next, struct chunk, all),
           "every granule of a chunk names it");
    struct list *node = &c->all, *after = node->next;
    list_remove(node);
    expect_words(r, "a zone counts the bytes of its chunks");
    list_push_front(after->prev, node);
}

RIG_TEST(broken_sums_are_named, busy(state))
{
    struct pool_stats *s = &r->pool->stats;
    BROKEN(s->allocated_bytes, s->allocated_bytes + 512,
           "allocated bytes are those of the live blocks");
    BROKEN(s->requested_bytes, s->requested_bytes + 1, "requested bytes are counted");
    BROKEN(s->reserved_bytes, s->reserved_bytes + MIB(2), "reserved bytes are those of the chunks");
    BROKEN(s->pending_bytes, s->pending_bytes + 512, "pending bytes are counted");
    BROKEN(s->live_blocks, s->live_blocks - 1, "live blocks are counted");
    BROKEN(r->pool->large.pending_bytes, 0, "pending bytes are counted by zone");
    BROKEN(r->pool->planned_bytes, MIB(2), "nothing is planned when nobody is at work");
    BROKEN(r->pool->ghost_bytes, MIB(2), "ghost bytes are counted");
    BROKEN(r->pool->large.dead_bytes, MIB(2), "a zone counts its dead bytes");
    BROKEN(r->pool->small.chunk_bytes, 0, "a zone counts the bytes of its chunks");
    BROKEN(s->at_peak_small_bytes, s->at_peak_small_bytes + 512,
           "what memory was for at its peak adds up to the peak");
    BROKEN(s->reserved_peak_bytes, s->reserved_bytes - 1, "a peak of reserved memory is looked at");
    BROKEN(r->pool->most_reserved_bytes, s->reserved_bytes - 1,
           "what is reserved and planned is within the limit");
    r->pool->most_reserved_bytes = s->reserved_bytes;
    EXPECT_SOUND(r);
    r->pool->unlocked_jobs++;
    BROKEN(r->pool->planned_bytes, MIB(2), "what is reserved and planned is within the limit");
    r->pool->unlocked_jobs--;
}

RIG_TEST(broken_fences_are_named, busy(state))
{
    struct fences *f = &r->pool->fences;
    EXPECT(f->ring.count > 0, "a fence is under way");
    BROKEN(f->ring.at[0].epoch, f->open_epoch, "only closed epochs have fences");
    BROKEN(f->complete_epoch, f->open_epoch, "nothing is complete before it is closed");
    BROKEN(f->ordered_epoch, f->open_epoch, "nothing is complete before it is closed");
    BROKEN(r->pool->pendings.head->epoch, 1000, "pending memory waits in the order of its epochs");
}

/* The same in segments: large ones whole, and two shared ones, in each of which something is
 * free. */
static struct rig *busy_segments(void **state)
{
    struct rig *r = *state;
    r->config.reuse = REUSE_READY;
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    rig_alloc(r, MIB(6));
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(8)), c = rig_alloc(r, MIB(10));
    rig_alloc(r, 3000);
    uint64_t shared[6];
    rig_alloc_all(r, shared, 6, KIB(700));
    rig_free(r, shared[1]);
    rig_free(r, shared[4]);
    rig_free(r, a);
    rig_launch(r, 1, 0, 0);
    rig_trim(r, GIB(1), true);
    rig_free_behind(r, 1, MS(10), b);
    rig_expose(r, shared[5]);
    rig_free(r, shared[5]);
    rig_launch(r, 1, MS(10), c);
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
    return r;
}

static struct chunk *live_chunk(struct zone *z, struct block **b)
{
    for (struct list *n = z->chunks.next; n != &z->chunks; n = n->next) {
        struct chunk *c = list_entry(n, struct chunk, all);
        *b = map_block(map_find(c->addr), c->addr);
        if (*b && (*b)->state == BLOCK_LIVE)
            return c;
    }
    fail_msg("a segment is live");
    return NULL;
}

RIG_TEST(broken_segments_are_named, busy_segments(state))
{
    struct zone *large = &r->pool->large, *small = &r->pool->small;
    struct block *live = NULL, *first;
    struct chunk *c = live_chunk(large, &live);
    BROKEN(live->size_bytes, live->size_bytes + 512, "a segment's blocks cover it");
    BROKEN(live->zone, small, "blocks know their zone");
    BROKEN(c->addr, c->addr + MIB(2), "every granule of a chunk names it");
    BROKEN(live->item.requested_bytes, live->item.requested_bytes - 1,
           "requested bytes are counted");
    BROKEN(live->state, BLOCK_DEAD, "the map leads to what is live only");
    BROKEN(r->pool->slack_bytes, r->pool->slack_bytes + 512, "the slack of segments is counted");
    BROKEN(r->pool->stats.allocated_bytes, 0, "allocated bytes are those of the live blocks");
    BROKEN(r->pool->stats.live_blocks, 0, "live blocks are counted");
    struct granule *g = map_find(c->addr);
    int at = g->starts[0] == live ? 0 : 1;
    BROKEN(g->starts[at], NULL, "a segment starts with a block");
    c = list_entry(small->chunks.next, struct chunk, all);
    first = map_block(map_find(c->addr), c->addr);
    EXPECT(first && first->next, "several share it");
    BROKEN(first->next, NULL, "a segment's blocks cover it");
    BROKEN(first->next->prev, NULL, "a segment starts with a block");
    struct block *idle = first;
    while (idle && idle->state != BLOCK_FREE)
        idle = idle->next;
    EXPECT(idle, "something in it is free");
    BROKEN(idle->state, BLOCK_DEAD, "bins hold the zone's free blocks only");
    placement_remove(&small->placement, idle);
    expect_words(r, "every free block is in a bin");
    placement_insert(&small->placement, idle);
    struct block *whole = placement_largest(&large->placement);
    EXPECT(whole, "the zone has a free block");
    placement_remove(&large->placement, whole);
    expect_words(r, "a segment starts with a block");
    placement_insert(&large->placement, whole);
    host_cache_ensure(&r->pool->block_cache, 1);
    struct block *upper = zone_split(live, live->addr + MIB(2));
    upper->state = BLOCK_LIVE;
    expect_words(r, "a large segment is one block");
    live->size_bytes += upper->size_bytes;
    live->next = NULL;
}

/* Three objects and three blocks of one size in the thread's magazine, and two large ones. */
static struct magazine *filled(struct rig *r)
{
    static const uint64_t sizes[] = {700, KIB(300), MIB(3)};
    uint64_t addrs[9];
    rig_free(r, rig_alloc(r, 512));
    for (int i = 0; i < 9; i++)
        addrs[i] = rig_alloc(r, sizes[i % 3]);
    rig_alloc(r, KIB(300));
    rig_free_every(r, addrs, 0, 8, 1);
    EXPECT_SOUND(r);
    return list_entry(r->pool->magazines.next, struct magazine, link);
}

static struct magazine_row *row_with(struct magazine *m, uint64_t size_bytes)
{
    for (unsigned at = MAGAZINE_OBJECTS; at < MAGAZINE_ROWS; at++)
        if (m->rows[at].newest > sizeof(struct magazine_cell) &&
            m->rows[at].units == size_bytes >> UNIT_SHIFT)
            return &m->rows[at];
    fail_msg("there are several of the size");
    return NULL;
}

RIG_TEST(broken_magazines_are_named, expect_single(state))
{
    struct magazine *m = filled(r);
    struct magazine_row *objects = row_with(m, 1024), *blocks = row_with(m, KIB(300));
    struct magazine_cell *object = &objects->cells[1], *block = &blocks->cells[1];
    BROKEN(m->cached, m->cached + 1, "a magazine counts what lies in it");
    BROKEN(objects->newest, (uint16_t)(objects->newest - sizeof *object),
           "a magazine counts what lies in it");
    BROKEN(blocks->last, (uint16_t)(blocks->newest - sizeof *block),
           "a row of a magazine has an end");
    BROKEN(blocks->units, blocks->units + 1, "a row of a magazine holds one size");
    BROKEN(block->epoch, r->pool->fences.open_epoch + 1,
           "nothing in a magazine was freed in a later epoch");
    BROKEN(block->item, object->item, "what lies in a magazine lies in its own row");
    BROKEN(m->rows[MAGAZINE_LARGE].cells[1].item->row, MAGAZINE_NEVER,
           "what lies in a magazine lies in its own row");
    struct pool_stats *s = &r->pool->stats;
    uint64_t allocated_bytes = s->allocated_bytes, requested_bytes = s->requested_bytes;
    s->allocated_bytes += KIB(300);
    s->requested_bytes += block->item->requested_bytes;
    s->live_blocks++;
    atomic_fetch_add(&block->item->word, ITEM_HELD);
    expect_words(r, "what lies in a magazine is not the program's");
    atomic_fetch_sub(&block->item->word, ITEM_HELD);
    s->allocated_bytes = allocated_bytes;
    s->requested_bytes = requested_bytes;
    s->live_blocks--;
    struct slab *slab = list_entry(object->item - object->item->slot, struct slab, items);
    BROKEN(slab->items[object->item->slot].live, false,
           "what lies in a magazine is live to the pool");
    /* Another one's record at the end of a row, and none there. */
    uint16_t newest = blocks->newest;
    int64_t cost = block->item->magazine_cost;
    blocks->newest = (uint16_t)(newest - sizeof *block);
    m->cached -= cost;
    expect_words(r, "what is live, and not the program's, lies in one magazine");
    blocks->newest = newest;
    m->cached += cost;
}

PLAY_TESTS
