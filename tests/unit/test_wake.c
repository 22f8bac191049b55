/* SPDX-License-Identifier: BSD-2-Clause */
/* What is away comes back, all of it or nothing, and what happens to a pool meanwhile:
 * pool/park.c. What goes, and what stays: test_park.c. Many parks, beside other threads:
 * test_park_turns.c. */
#include "pool/chunk.h"
#include "pool/magazine_pool.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#define CASE(name) RIG_TEST(name, expect_bytes(*state))

/* Freed with work of several streams about, so that each free needs a fence, and by way of a
 * magazine. */
CASE(a_chunk_freed_whole_while_away_is_not_created_again)
{
    uint64_t a = rig_written(r, MIB(40)), b = rig_written(r, MIB(50)), c = rig_written(r, MIB(1)),
             small;
    small = rig_written(r, KIB(700));
    rig_launch(r, 1, MS(1), a);
    rig_launch(r, 2, MS(1), b);
    rig_free(r, rig_alloc(r, 4096)); /* from here on the thread has a magazine */
    uint64_t gone = rig_park(r, 0, 0, false);
    rig_free(r, a);
    rig_free(r, c);
    rig_free(r, small);
    uint64_t creates = model_calls(r->model, MODEL_ROW_create);
    EXPECT_EQ(rig_wake(r), 0, "the rest comes back");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), creates + 1, "one chunk");
    EXPECT(!map_find(a)->chunk && !map_find(small)->chunk, "the freed ones are holes");
    EXPECT_EQ(rig_stats(r).reserved_bytes, map_find(b)->chunk->size_bytes, "and reserved no more");
    EXPECT(gone > rig_stats(r).reserved_bytes, "less than went");
    EXPECT_SOUND(r);
    rig_launch(r, 1, MS(1), rig_written(r, MIB(40)));
}

/* In the order of one stream the free block is ready at once, though its work is not known
 * complete. */
RIG_TEST(the_same_in_single_stream_mode, *state)
{
    r->model->backend.single_stream = true;
    expect_bytes(r);
    uint64_t a = rig_written(r, MIB(40)), b = rig_written(r, MIB(50));
    rig_launch(r, 0, MS(1), a);
    EXPECT(rig_park(r, 0, 0, false) >= MIB(90), "both go");
    rig_free(r, a);
    EXPECT_EQ(pool_behind_work_bytes(r->pool), 0, "no trim can give it back later");
    uint64_t creates = model_calls(r->model, MODEL_ROW_create);
    rig_launch(r, 0, MS(1), b);
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), creates + 1, "a use brings one chunk back");
}

/* Whichever call fails, everything of that try goes back, and the next try works. */
CASE(a_wake_is_all_or_nothing)
{
    static const enum model_row rows[] = {MODEL_ROW_create, MODEL_ROW_map, MODEL_ROW_allow};
    for (int i = 1; i < 6; i++)
        rig_written(r, MIB(10) * (uint64_t)i);
    rig_written(r, 3000);
    rig_expose(r, r->blocks[2].addr); /* so that there are two ranges to allow */
    uint64_t gone = rig_park(r, 0, 0, false), used = model_used_bytes(r->model);
    uint64_t maps = model_calls(r->model, MODEL_ROW_map);
    for (int i = 0; i < 3; i++)
        for (uint64_t nth = 1;; nth++) {
            model_fail(r->model, rows[i], nth, MODEL_NOMEM);
            int code = rig_wake(r);
            if (!model_failed(r->model)) {
                EXPECT_EQ(code, 0, "without a failure it works");
                EXPECT(nth > (i == 2 ? 2 : 5), "each call has failed once");
                model_fail(r->model, MODEL_ANY, 0, 0);
                EXPECT_EQ(rig_park(r, 0, 0, false), gone, "and again");
                break;
            }
            EXPECT_EQ(code, MODEL_NOMEM, "the driver's own code");
            EXPECT_EQ(model_used_bytes(r->model), used, "all of that try is back");
            EXPECT_EQ(pool_away_bytes(r->pool), gone, "all is away as before");
            if (i == 0)
                EXPECT_EQ(model_calls(r->model, MODEL_ROW_map), maps, "nothing was mapped");
            EXPECT_SOUND(r);
        }
    EXPECT_EQ(rig_wake(r), 0, "nothing was lost");
}

/* Another pool's wake has failed: this one's memory goes again, with nothing copied. */
CASE(a_wake_can_be_taken_back)
{
    rig_written(r, MIB(40));
    rig_written(r, 3000);
    uint64_t gone = rig_park(r, 0, 0, false);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(pool_wake_begin(r->pool), 0, "it comes");
        EXPECT_EQ(pool_away_bytes(r->pool), 0, "all of it"); /* nothing is free */
        EXPECT_EQ(pool_park_end(r->pool, true), gone, "it goes again");
        EXPECT_EQ(model_used_bytes(r->model), 0, "all of it");
        EXPECT_SOUND(r);
    }
    EXPECT_EQ(pool_wake_begin(r->pool), 0, "it comes");
    EXPECT_EQ(pool_expose(r->blocks[0].addr), POOL_OK, "against the rule");
    EXPECT_EQ(pool_park_end(r->pool, true), gone, "memory without its bytes does not stay");
    EXPECT_EQ(rig_wake(r), 0, "the bytes are still saved");
}

/* What is free while the wake is tried, and what is handed out after it was in vain. */
CASE(a_wake_in_vain_makes_no_holes)
{
    uint64_t a = rig_written(r, MIB(40)), b = rig_written(r, MIB(50));
    uint64_t gone = rig_park(r, 0, 0, false);
    rig_free(r, a);
    model_fail(r->model, MODEL_ROW_create, 1, MODEL_NOMEM);
    EXPECT_EQ(rig_wake(r), MODEL_NOMEM, "there is no memory");
    EXPECT_EQ(pool_away_bytes(r->pool), gone, "all is away");
    EXPECT_EQ(rig_alloc(r, MIB(40)), a, "what is free serves a request");
    rig_free(r, a);
    EXPECT_EQ(pool_wake_begin(r->pool), 0, "now there is");
    EXPECT(pool_is_away(a) && !pool_is_away(b), "what is free is not created");
    uint64_t c = rig_alloc(r, MIB(40));
    EXPECT(c != a && !pool_is_away(c), "nor handed out");
    EXPECT_SOUND(r);
    EXPECT(pool_park_end(r->pool, true) < gone, "what had come goes again");
    EXPECT_EQ(pool_away_bytes(r->pool), gone, "all is away");
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_alloc(r, MIB(40)), a, "what is free serves a request");
    rig_free(r, a);
    EXPECT_EQ(rig_wake(r), 0, "at last");
    EXPECT(!map_find(a)->chunk, "what is free is a hole");
}

CASE(a_context_ends_while_its_memory_is_away)
{
    uint64_t a = rig_written(r, MIB(40)), b = rig_written(r, MIB(20));
    rig_expose(r, b);
    EXPECT(rig_park(r, 0, 0, false) >= MIB(40), "it goes");
    EXPECT(pool_is_away(a), "it is away");
    pool_park_hold(r->pool, 0, 0);
    r->count = 0;
    uint64_t unmaps = r->model->unmaps;
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    EXPECT_EQ(r->model->unmaps, unmaps + 1, "only what is mapped is unmapped");
    EXPECT(!pool_is_away(a), "nothing is away");
    EXPECT_EQ(pool_away_bytes(r->pool), 0, "nothing");
    EXPECT_EQ(pool_wake_begin(r->pool), 0, "there is nothing to wake");
    EXPECT_EQ(pool_park_hold(r->pool, 0, 0), 0, "nor to park");
    EXPECT_EQ(pool_park_end(r->pool, true), 0, "nor to let go");
    EXPECT_EQ(pool_exposed_bytes(r->pool), 0, "nor to keep");
    EXPECT(!model_leak(r->model), "the address space is given back");
}

/* The next context has the pool. */
CASE(a_pool_that_is_revived_parks_anew)
{
    rig_written(r, MIB(40));
    EXPECT(rig_park(r, 0, 0, false), "it goes");
    r->count = 0;
    r->saved_count = 0;
    pool_abandon(r->pool);
    EXPECT(pool_revive(r->pool), "another context has it");
    uint64_t a = rig_written(r, MIB(20));
    EXPECT(rig_park(r, 0, 0, false) >= MIB(20), "it parks");
    EXPECT(pool_is_away(a), "its memory is away");
    EXPECT_EQ(rig_wake(r), 0, "and wakes");
}

POOL_TEST(segments_and_lost_and_working_pools_are_not_parked)
{
    struct rig *r = expect_segments(state), *s = rig_create(MIB(256)), *t = rig_create(MIB(256));
    rig_written(r, MIB(40));
    EXPECT_EQ(pool_park_hold(r->pool, 0, 0), 0, "segments stay");
    rig_start(s);
    rig_alloc(s, MIB(40));
    pool_lose(s->pool);
    s->lost = true;
    EXPECT_EQ(pool_park_hold(s->pool, 0, 0), 0, "a lost pool stays");
    EXPECT_ENDS(s);
    rig_start(t);
    uint64_t a = rig_alloc(t, MIB(40)), b = rig_alloc(t, MIB(40));
    rig_launch(t, 1, MS(1000), a);
    rig_free(t, a);
    rig_launch(t, 1, MS(1000), b);
    t->model->late_allowed = true;
    EXPECT_EQ(pool_park_hold(t->pool, 0, 0), 0, "work of a free still runs");
    EXPECT(list_empty(&t->pool->parked), "nothing is held");
    EXPECT_ENDS(t);
}

/* Memory that moved while old work used it is mapped twice. */
RIG_TEST(a_park_ends_all_ghosts, *state)
{
    r->config.reuse = REUSE_ORDER;
    expect_bytes(r);
    uint64_t a[20];
    rig_alloc_all(r, a, 20, MIB(10));
    for (int i = 0; i < 20; i++)
        rig_launch(r, 1, MS(1), a[i]);
    rig_free_every(r, a, 0, 20, 2);
    rig_written(r, MIB(60));
    EXPECT(r->pool->ghost_bytes, "chunks have moved");
    model_drain(r->model);
    EXPECT(r->pool->ghost_bytes, "nobody has looked since");
    EXPECT_EQ(rig_park(r, 0, 0, false), rig_stats(r).reserved_bytes, "all goes");
    EXPECT_EQ(r->pool->ghost_bytes, 0, "no ghost is left");
    EXPECT_EQ(model_used_bytes(r->model), 0, "so the memory is free");
}

RIG_TEST(the_limit_holds_over_park_growth_and_wake, *state)
{
    r->config.max_reserved_bytes = MIB(100);
    expect_bytes(r);
    rig_written(r, MIB(60));
    EXPECT(rig_park(r, 0, 0, false) >= MIB(60), "it goes");
    r->driver_serves = false;
    EXPECT_EQ(rig_alloc(r, MIB(60)), 0, "what is away counts");
    EXPECT_EQ(r->status, POOL_LIMIT, "as the limit says");
    EXPECT(rig_alloc(r, MIB(30)), "within it there is memory");
    EXPECT_EQ(rig_wake(r), 0, "all comes back");
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(100), "the limit was kept throughout");
}

static void add_bytes(void *arg, uint64_t addr, uint64_t size_bytes)
{
    *(uint64_t *)arg += size_bytes;
}

CASE(lists_tell_device_memory_from_what_the_program_holds)
{
    struct pool_range ranges[8];
    uint64_t shared = rig_written(r, MIB(10)), bytes = 0;
    rig_written(r, MIB(40));
    rig_expose(r, shared);
    uint64_t here = map_find(shared)->chunk->size_bytes;
    EXPECT(rig_park(r, 0, 0, false), "the other goes");
    EXPECT_EQ(pool_list_live(r->pool, ranges, 8), 2, "the program holds both");
    EXPECT_EQ(pool_list_chunks(r->pool, ranges, 8), 1, "one is on the device");
    EXPECT_EQ(ranges[0].size_bytes, here, "that one");
    pool_for_each_range(r->pool, add_bytes, &bytes);
    EXPECT_EQ(bytes, here, "access rights are those of mapped memory");
    struct pool_block block;
    EXPECT_EQ(pool_lookup(r->blocks[1].addr + 7, &block), POOL_OK, "blocks are found");
    EXPECT_EQ(block.requested_bytes, MIB(40), "as they are");
}

CASE(only_addresses_of_chunks_that_are_away_are_away)
{
    uint64_t a = rig_written(r, MIB(40));
    EXPECT(!pool_is_away(a) && !pool_is_away(0), "nothing is away");
    rig_park(r, 0, 0, false);
    EXPECT(pool_is_away(a) && pool_is_away(a + MIB(40) - 1), "all of the block");
    EXPECT(!pool_is_away(0) && !pool_is_away(UINT64_MAX) && !pool_is_away(a + MIB(400)),
           "no other address");
    rig_free(r, a);
    EXPECT(pool_is_away(a), "whether it is live or not");
    rig_wake(r);
    EXPECT(!pool_is_away(a), "until the wake");
}

CASE(broken_states_of_parked_chunks_are_named)
{
    rig_written(r, MIB(40));
    rig_written(r, 3000);
    rig_park(r, 0, 0, false);
    struct chunk *c = list_entry(r->pool->parked.next, struct chunk, parked);
    struct chunk *other = list_entry(c->parked.next, struct chunk, parked);
    BROKEN(c->park, CHUNK_HERE, "only chunks that are held or away are listed as parked");
    BROKEN(c->park, CHUNK_HELD, "away bytes are those of the chunks");
    BROKEN(r->pool->parked.next, c->parked.next, "what is held or away is listed");
    BROKEN(r->pool->stats.away_bytes, r->pool->stats.away_bytes + 1,
           "away bytes are those of the chunks");
    BROKEN(r->pool->away_bytes, r->pool->away_bytes + 1, "away bytes are those of the chunks");
    list_remove(&c->parked);
    list_push_back(&r->pool->parked, &c->parked);
    expect_words(r, "parked chunks are listed by address");
    list_remove(&c->parked);
    list_push_front(&r->pool->parked, &c->parked);
    EXPECT(other->addr > c->addr, "two chunks");
    EXPECT_SOUND(r);
    EXPECT_EQ(pool_wake_begin(r->pool), 0, "all is well");
    BROKEN(c->busy_block, r->pool->large.first,
           "nobody moves or releases a chunk that is held or back");
    pool_park_end(r->pool, true);
    EXPECT_EQ(rig_wake(r), 0, "all is well");
    rig_expose(r, r->blocks[0].addr);
    rig_expose(r, r->blocks[1].addr);
    for (int i = 0; i < 2; i++)
        BROKEN(map_find(r->blocks[i].addr)->chunk->exposed, false,
               "a chunk knows that something in it is exposed");
    uint64_t object = r->blocks[1].addr;
    struct chunk *dead = map_find(object)->chunk;
    rig_free(r, object);
    rig_settle(r); /* the slab is buried, and has no exposed object any more */
    BROKEN(dead->exposed, false, "a chunk knows that something in it is dead");
}

PLAY_TESTS
