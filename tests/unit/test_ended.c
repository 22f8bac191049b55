/* SPDX-License-Identifier: BSD-2-Clause */
/* A context ends, with its segments, while a thread is inside its pool. Before that pool learns of
 * it, the driver gives the same addresses to the pool of the next context (pool/abandon.c: what a
 * thread inside may read). */
#include "pool/map.h"
#include "tests/unit/ends.h"

enum { MOMENTS = 16, SECONDS = ENDS_BLOCKS };

/* At moment `at` of a step the context ends. The pool of the next one takes what the driver has,
 * and gives some of it back. */
struct next {
    struct rig *rig;
    struct pool *pool; /* NULL: the moment has not come */
    uint64_t addrs[SECONDS];
    unsigned count, taken; /* of the first pool's ranges */
    uint64_t at, moments;
};

static void begin_next(struct next *n)
{
    struct rig *r = n->rig;
    struct model *m = r->model;
    model_destroy_context(m);
    pthread_mutex_lock(&m->lock);
    m->context_gone = m->broken = false;
    pthread_mutex_unlock(&m->lock);
    n->pool = pool_create(&m->backend, &r->config, n);
    for (unsigned i = 0; i < SECONDS; i++) {
        int code;
        EXPECT_EQ(pool_alloc(n->pool, ends_sizes[i % 5], &n->addrs[i], &code), POOL_OK,
                  "there is memory");
        for (unsigned k = 0; k < r->count; k++)
            n->taken += r->blocks[k].addr / GRANULE_BYTES == n->addrs[i] / GRANULE_BYTES;
    }
    n->count = SECONDS; /* as the first pool did, so that their segments are the same */
    EXPECT_EQ(pool_free(n->addrs[--n->count]), POOL_OK, "it is this pool's");
    EXPECT_EQ(pool_free(n->addrs[--n->count]), POOL_OK, "it is this pool's");
    EXPECT_EQ(pool_trim(n->pool, &(struct pool_trim){.wait_ns = MS(5)}) > 0, true,
              "some is nobody's again");
}

static void at_a_call(struct model *m, enum model_row row)
{
    struct next *n = m->hook_arg;
    if (++n->moments != n->at)
        return;
    m->hook = NULL;
    begin_next(n);
}

static void at_a_free(struct model *m, uint64_t addr)
{
    struct next *n = m->hook_arg;
    if (++n->moments != n->at)
        return;
    m->hook_freed = NULL;
    begin_next(n);
}

static void release(struct rig *r)
{
    pool_release(r->pool, POOL_RELEASE_PENDING);
}

static void free_some(struct rig *r)
{
    for (unsigned i = 0; i < 8; i++)
        if (pool_free(r->blocks[0].addr) == POOL_OK)
            r->blocks[0] = r->blocks[--r->count];
    pool_release_at_free(r->blocks[0].addr);
}

static void (*const steps[])(struct rig *r) = {trim,        tick,      release, alloc_small,
                                               alloc_large, alloc_all, submit,  free_some};
enum { STEPS = sizeof steps / sizeof *steps };

static const char *finish(struct rig *r, struct next *n)
{
    r->model->hook = NULL;
    r->model->hook_freed = NULL;
    if (n->pool) {
        const char *words = pool_check(n->pool);
        EXPECT(!words, words);
        pool_abandon(r->pool);
        EXPECT(!pool_check(n->pool), "the end of one leaves the other as it is");
        for (unsigned i = 0; i < n->count; i++)
            EXPECT_EQ(pool_free(n->addrs[i]), POOL_OK, "what the next has is its own");
        model_drain(r->model);
        pool_trim(n->pool, &(struct pool_trim){.wait_ns = MS(1000)});
        EXPECT(!pool_check(n->pool), "it is sound");
        model_destroy_context(r->model);
        pool_abandon(n->pool);
        r->count = 0;
    }
    return rig_destroy(r);
}

TEST(a_thread_inside_reads_nothing_of_the_next_pool)
{
    unsigned ended = 0, taken = 0;
    for (unsigned step = 0; step < STEPS; step++)
        for (unsigned freed = 0; freed < 2; freed++)
            for (uint64_t at = 1; at <= MOMENTS; at++) {
                struct rig *r = rig_in(RIG_BYTES, true, false);
                struct next n = {.rig = r, .at = at};
                r->config.idle_timeout_ns = MS(1);
                r->config.max_idle_bytes = MIB(4);
                r->config.min_free_bytes = MIB(1);
                rig_start(r);
                ends_fill(r, true);
                r->model->hook_arg = &n;
                if (freed)
                    r->model->hook_freed = at_a_free;
                else
                    r->model->hook = at_a_call;
                steps[step](r);
                bool came = n.pool;
                ended += came;
                taken += n.taken;
                const char *words = finish(r, &n);
                if (words && strcmp(words, "a fence is left") != 0)
                    fail_msg("step %u, moment %u: %s", step, (unsigned)at, words);
                if (!came)
                    break;
            }
    EXPECT(ended > 40, "it was tried at many moments");
    EXPECT(taken > 40, "with the first pool's ranges");
}

/* The first pool has idle memory at addresses that are the next one's by now. */
POOL_TEST(what_the_next_pool_has_is_not_handed_out)
{
    struct rig *r = expect_segments(state);
    struct next n = {.rig = r};
    uint64_t addr;
    int code;
    for (unsigned i = 0; i < 5; i++)
        rig_alloc(r, ends_sizes[i]);
    rig_free_all(r);
    rig_empty_magazines(r);
    begin_next(&n);
    for (unsigned i = 0; i < 5; i++)
        EXPECT_EQ(pool_alloc(r->pool, ends_sizes[i], &addr, &code), POOL_PASS,
                  "its context is over");
    const char *words = finish(r, &n);
    *state = rig_create(RIG_BYTES);
    EXPECT(!words || !strcmp(words, "a fence is left"), words);
}

/* The next life of a primary context has the handle of this one, so a thread that is in the driver
 * for a segment gets one of that life. */
static void begin_again(struct model *m, enum model_row row)
{
    if (row != MODEL_ROW_segment_alloc)
        return;
    m->hook = NULL;
    atomic_store(&m->backend.gone, true);
    model_destroy_context(m);
    pthread_mutex_lock(&m->lock);
    m->context_gone = false;
    pthread_mutex_unlock(&m->lock);
}

/* The driver gives its thread addresses that the pool still has. What is idle is seized by what the
 * map says is there. */
TEST(a_pool_takes_nothing_of_the_next_life)
{
    struct rig *r = rig_in(RIG_BYTES, true, false);
    uint64_t first, addr;
    int code;
    rig_start(r);
    rig_free(r, rig_alloc(r, MIB(200))); /* so much may be idle */
    rig_trim(r, 0, true);
    first = rig_freed(r, MIB(30)); /* too large to serve the request */
    rig_settle(r);
    r->model->hook = begin_again;
    EXPECT_EQ(pool_alloc(r->pool, MIB(20), &addr, &code), POOL_PASS, "its context is over");
    EXPECT(!r->model->hook, "the next life began meanwhile");
    EXPECT(!pool_owns(first), "where the pool had an idle segment");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(30), "the new one is not added");
    trim(r);
    release(r);
    pool_abandon(r->pool);
    model_destroy_context(r->model);
    EXPECT_ENDS(r);
}

/* The driver gives the next pool a part of a segment, in which a slab of the first begins. */
TEST(a_segment_is_evicted_as_a_whole)
{
    enum { OBJECTS = 26000 };
    static uint64_t at[OBJECTS];
    struct rig *r = rig_in(RIG_BYTES, true, false);
    rig_start(r);
    for (unsigned i = 0; i < OBJECTS; i++)
        at[i] = rig_alloc(r, i % 2 ? KIB(12) : 600);
    model_destroy_context(r->model);
    r->model->context_gone = false;
    struct pool *next = pool_create(&r->model->backend, &r->config, NULL);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t addr;
        int code;
        EXPECT_EQ(pool_alloc(next, i ? MIB(2) : MIB(120), &addr, &code), POOL_OK,
                  "there is memory");
        for (unsigned k = 0; k < OBJECTS; k += 7) {
            struct pool_block found;
            pool_lookup(at[k], &found);
        }
        EXPECT(!pool_check(next), "the next is sound");
    }
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    pool_abandon(next);
    r->count = 0;
    ends_destroy(r, "whole", 0);
}

static void *use(void *arg)
{
    struct pool *p = arg;
    uint64_t addr;
    int code;
    for (unsigned i = 0; i < 4000; i++) {
        if (pool_alloc(p, ends_sizes[i % 5] + i % 7 * KIB(1), &addr, &code) == POOL_OK && i % 8)
            pool_free(addr);
        if (i % 64 == 0)
            pool_trim(p, &(struct pool_trim){.keep_bytes = MIB(8)});
        pool_submit(p, i % 3);
    }
    return NULL;
}

/* To be run under TSan: what the map says of a range belongs to the lock of the pool named there.
 * A thread of the program goes on in a pool whose context has ended, while the next one's pool
 * takes its ranges. */
TEST(two_pools_may_meet_at_a_range)
{
    for (unsigned round = 0; round < 20; round++) {
        struct rig *r = rig_in(RIG_BYTES, true, false);
        struct next n = {.rig = r};
        pthread_t threads[2];
        r->config.max_idle_bytes = MIB(4);
        rig_start(r);
        ends_fill(r, true);
        threads[0] = started(use, r->pool);
        begin_next(&n);
        threads[1] = started(use, n.pool);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        model_destroy_context(r->model);
        pool_abandon(r->pool);
        pool_abandon(n.pool);
        r->count = 0;
        rig_destroy(r);
    }
}

PLAY_TESTS
