/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/check.c: each invariant is broken by hand, and pool_check must name it.
 */
#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#include <string.h>

/* A pool in which something of everything is there. */
static struct rig *busy(void **state)
{
    struct rig *r = *state;
    r->config.reuse = REUSE_READY;
    rig_start(r);
    uint64_t a = rig_alloc(r, MIB(6));
    uint64_t b = rig_alloc(r, MIB(3)), c = rig_alloc(r, MIB(3));
    rig_alloc(r, 3000);
    uint64_t d = rig_alloc(r, 3000);
    rig_alloc(r, KIB(200));
    rig_free(r, a);
    rig_launch(r, 1, 0, 0);
    rig_trim(r, GIB(1), true);
    rig_launch(r, 1, MS(10), b);
    rig_free(r, b);
    rig_free(r, d);
    rig_launch(r, 1, MS(10), c);
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
    return r;
}

static void expect_words(struct rig *r, const char *words)
{
    const char *said = pool_check(r->pool);
    if (!said || strcmp(said, words))
        fail_msg("pool_check says \"%s\", not \"%s\"", said ? said : "nothing", words);
}

/* Changes a field, wants the words, and puts the field back. */
#define BROKEN(field, value, words)                                                                \
    do {                                                                                           \
        __typeof__(field) broken_before = (field);                                                 \
        (field) = (value);                                                                         \
        expect_words(r, words);                                                                    \
        (field) = broken_before;                                                                   \
    } while (0)

static struct block *block_in(struct zone *z, enum block_state s)
{
    struct block *b = z->first;
    while (b && b->state != s)
        b = b->next;
    EXPECT(b, "the zone has a block in this state");
    return b;
}

static void broken_chains_are_named(void **state)
{
    struct rig *r = busy(state);
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

static void broken_blocks_are_named(void **state)
{
    struct rig *r = busy(state);
    struct block *live = block_in(&r->pool->large, BLOCK_LIVE);
    struct block *free_block = block_in(&r->pool->large, BLOCK_FREE);
    struct block *pending = block_in(&r->pool->large, BLOCK_PENDING);
    struct granule *g = map_find(live->addr);
    int at = g->starts[0] == live ? 0 : 1;
    BROKEN(g->start_units[at], 0, "a live block is found by its address");
    BROKEN(live->piece.requested_bytes, MIB(300), "a block holds what was asked for");
    BROKEN(live->piece.requested_bytes, live->piece.requested_bytes - 1, "requested bytes are counted");
    BROKEN(free_block->piece.epoch, 1000, "no block is freed in a later epoch");
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

static void broken_slabs_are_named(void **state)
{
    struct rig *r = busy(state);
    struct block *b = block_in(&r->pool->small, BLOCK_SLAB);
    struct slab *s = block_slab(b);
    BROKEN(s->free_count, (uint16_t)(s->free_count - 1),
           "a slab's count of free objects is that of its bitmap");
    BROKEN(s->pieces[5].live, true, "a free object is not live");
    BROKEN(s->block, block_in(&r->pool->small, BLOCK_FREE),
           "a slab and its block point to each other");
    struct granule *g = map_find(b->addr);
    struct map_page *page = &g->pages[(b->addr & (GRANULE_BYTES - 1)) / SLAB_PAGE_BYTES];
    BROKEN(page->start_units[0], 0, "a slab is found by its address");
}

static void broken_bins_and_lists_are_named(void **state)
{
    struct rig *r = busy(state);
    struct bins *bins = &r->pool->large.bins;
    struct block *f = block_in(&r->pool->large, BLOCK_FREE);
    unsigned word = 0;
    while (!bins->map[word])
        word++;
    BROKEN(bins->map[word], 0, "the bitmap tells which bins hold blocks");
    BROKEN(f->zone, &r->pool->small, "blocks know their zone");
    bins_remove(bins, f);
    expect_words(r, "every free block is in a bin");
    bins_insert(bins, f);
    struct block *hole = block_in(&r->pool->large, BLOCK_HOLE);
    list_remove(&hole->link);
    expect_words(r, "holes are listed");
    list_push_back(&r->pool->large.holes, &hole->link);
}

static void broken_chunks_are_named(void **state)
{
    struct rig *r = busy(state);
    struct chunk *c = list_entry(r->pool->large.chunks.next, struct chunk, all);
    BROKEN(c->dead, c->dead + 1, "a chunk counts the dead blocks on it");
    BROKEN(c->zone, &r->pool->small, "chunks know their zone");
    BROKEN(c->size_bytes, c->size_bytes - 512, "chunks are whole granules");
    BROKEN(map_find(c->addr)->chunk, (struct chunk *)list_entry(c->all.next, struct chunk, all),
           "every granule of a chunk names it");
    struct list *node = &c->all, *after = node->next;
    list_remove(node);
    expect_words(r, "reserved bytes are those of the chunks");
    list_push_front(after->prev, node);
}

static void broken_sums_are_named(void **state)
{
    struct rig *r = busy(state);
    struct pool_stats *s = &r->pool->stats;
    BROKEN(s->allocated_bytes, s->allocated_bytes + 512,
           "allocated bytes are those of the live blocks");
    BROKEN(s->requested_bytes, s->requested_bytes + 1, "requested bytes are counted");
    BROKEN(s->reserved_bytes, s->reserved_bytes + MIB(2), "reserved bytes are those of the chunks");
    BROKEN(s->pending_bytes, s->pending_bytes + 512, "pending bytes are counted");
    BROKEN(s->live_blocks, s->live_blocks - 1, "live blocks are counted");
    BROKEN(r->pool->large.pending_bytes, 0, "pending bytes are counted by zone");
}

static void broken_fences_are_named(void **state)
{
    struct rig *r = busy(state);
    struct fences *f = &r->pool->fences;
    EXPECT(f->ring.count > 0, "a fence is under way");
    BROKEN(f->ring.at[0].epoch, f->open_epoch, "only closed epochs have fences");
    BROKEN(f->complete_epoch, f->open_epoch, "nothing is complete before it is closed");
    BROKEN(f->ordered_epoch, f->open_epoch, "nothing is complete before it is closed");
    BROKEN(r->pool->pendings.head->epoch, 1000, "pending memory waits in the order of its epochs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(broken_chains_are_named), RIG_TEST(broken_blocks_are_named),
        RIG_TEST(broken_slabs_are_named),  RIG_TEST(broken_bins_and_lists_are_named),
        RIG_TEST(broken_chunks_are_named), RIG_TEST(broken_sums_are_named),
        RIG_TEST(broken_fences_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
