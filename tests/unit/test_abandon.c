/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/abandon.c: a context ends while other threads are inside its pool. It ends at every moment
 * at which the pool's lock is dropped for a call of the backend. */
#include "pool/state.h"
#include "tests/unit/ends.h"

#include <unistd.h>

/* The context ends at call number `at` of a row that no thread is waited for in. */
struct end {
    struct pool *pool;
    uint64_t at, calls;
    bool ended;
};

/* A thread that gets memory is waited for; on its way it may ask what is free. */
static bool is_waited_for(const struct pool *p, enum model_row row)
{
    return row == MODEL_ROW_create || row == MODEL_ROW_map || row == MODEL_ROW_allow ||
           row == MODEL_ROW_segment_alloc || row == MODEL_ROW_reserve ||
           (row == MODEL_ROW_mem_info && p->unlocked_jobs);
}

static void end_meanwhile(struct model *m, enum model_row row)
{
    struct end *e = m->hook_arg;
    if (is_waited_for(e->pool, row) || e->ended || ++e->calls < e->at)
        return;
    e->ended = true;
    model_destroy_context(m);
    pool_abandon(e->pool);
}

static void ignore(void *arg, uint64_t addr, uint64_t size_bytes)
{
}

static void leave_single(struct rig *r)
{
    pool_leave_single_stream(r->pool);
}

static void free_one(struct rig *r)
{
    if (pool_free(r->blocks[0].addr) == POOL_OK)
        r->blocks[0] = r->blocks[--r->count];
}

static void (*const steps[])(struct rig *r) = {trim,      tick,   alloc_small,  alloc_large,
                                               alloc_all, submit, leave_single, free_one};
enum { STEPS = sizeof steps / sizeof *steps, MOMENTS = 12 };

/* Takes a step on a pool of r. At the moment end->at of the step the hook ends the pool. */
static void end_inside(struct rig *r, unsigned step, struct end *end,
                       void (*hook)(struct model *m, enum model_row row))
{
    r->config.idle_timeout_ns = MS(1);
    r->config.sync_free = steps[step] == free_one;
    r->model->backend.single_stream = steps[step] == leave_single;
    rig_start(r);
    ends_fill(r, false);
    end->pool = r->pool;
    rig_hook(r, hook, end);
    steps[step](r);
    r->model->hook = NULL;
}

TEST(a_pool_may_end_whenever_its_lock_is_free)
{
    unsigned ended = 0;
    for (unsigned backing = 0; backing < 2; backing++)
        for (unsigned step = 0; step < STEPS; step++)
            for (uint64_t at = 1; at <= MOMENTS; at++) {
                struct rig *r = rig_in(RIG_BYTES, backing, false);
                struct end end = {.at = at};
                r->config.max_idle_bytes = MIB(4);
                r->config.min_free_bytes = MIB(1);
                end_inside(r, step, &end, end_meanwhile);
                ended += end.ended;
                if (!end.ended)
                    at = MOMENTS;
                if (end.ended && model_used_bytes(r->model))
                    fail_msg("backing %u, step %u, moment %u: memory is left", backing, step,
                             (unsigned)at);
                ends_destroy(r, "step and moment", 100 * step + at);
            }
    EXPECT(ended > 40, "it was tried at many moments");
}

static void stop_inside(struct model *m, enum model_row row)
{
    struct stopped *s = m->hook_arg;
    if (row != s->row)
        return;
    m->hook = NULL;
    stopped_wait(s);
}

static void *grow(void *arg)
{
    struct stopped *s = arg;
    uint64_t addr;
    int code;
    pool_alloc(s->rig->pool, MIB(24), &addr, &code);
    return NULL;
}

TEST(a_thread_with_memory_in_work_is_waited_for)
{
    static const enum model_row rows[] = {MODEL_ROW_create, MODEL_ROW_map, MODEL_ROW_allow,
                                          MODEL_ROW_segment_alloc};
    for (unsigned n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct rig *r = rig_in(RIG_BYTES, rows[n] == MODEL_ROW_segment_alloc, false);
        struct stopped s = {.rig = r, .row = rows[n]};
        rig_start(r);
        rig_alloc(r, MIB(6));
        r->model->hook = stop_inside;
        stopped_begin(&s, grow);
        EXPECT_EQ(stopped_end(&s), MIB(6), "nothing is taken away as long as one is inside");
        EXPECT_EQ(model_used_bytes(r->model), 0, "all memory went back, its own too");
        EXPECT_ENDS(r);
    }
}

/* The context ends in a signal handler of a thread that has memory in work. */
static void end_in_own_job(struct model *m, enum model_row row)
{
    struct end *e = m->hook_arg;
    if (!is_waited_for(e->pool, row) || e->ended || ++e->calls < e->at)
        return;
    e->ended = true;
    model_destroy_context(m);
    pool_abandon(e->pool);
}

TEST(a_thread_waits_for_no_job_of_its_own)
{
    unsigned ended = 0;
    for (unsigned backing = 0; backing < 2; backing++)
        for (unsigned step = 0; step < STEPS; step++)
            for (uint64_t at = 1; at <= MOMENTS; at++) {
                struct rig *r = rig_in(RIG_BYTES, backing, false);
                struct end end = {.at = at};
                end_inside(r, step, &end, end_in_own_job);
                ended += end.ended;
                if (end.ended)
                    model_destroy_context(r->model); /* with a segment that came since */
                else
                    at = MOMENTS;
                EXPECT_EQ(pool_is_vacant(r->pool), end.ended, "nobody is inside any more");
                if (end.ended && model_used_bytes(r->model))
                    fail_msg("backing %u, step %u, moment %u: memory is left", backing, step,
                             (unsigned)at);
                ends_destroy(r, "step and moment", 100 * step + at);
            }
    EXPECT(ended > 10, "it was tried at many moments");
}

static void *let_it_end(void *arg)
{
    struct stopped *s = arg;
    pthread_t ender = started(stopped_ender, s->rig->pool);
    uint64_t reserved_bytes;
    while (!stopped_is_abandoned(s->rig->pool, &reserved_bytes))
        sched_yield();
    for (bool inside = true; inside; usleep(1000)) {
        model_advance(s->rig->model, ABANDON_WAIT_NS);
        LOCKED(s->rig->pool, inside = s->rig->pool->threads_inside > 1);
    }
    pthread_join(ender, NULL);
    return NULL;
}

/* As one that the driver keeps, or that was left by a jump. */
TEST(a_thread_that_does_not_come_back_is_not_waited_for_for_ever)
{
    for (unsigned segments = 0; segments < 2; segments++) {
        struct rig *r = rig_in(RIG_BYTES, segments, false);
        struct stopped s = {.rig = r, .row = segments ? MODEL_ROW_segment_alloc : MODEL_ROW_map};
        rig_start(r);
        rig_alloc(r, MIB(6));
        r->model->hook = stop_inside;
        stopped_begin(&s, grow);
        let_it_end(&s);
        EXPECT(!pool_is_vacant(r->pool) && !pool_revive(r->pool), "it may come yet");
        sem_post(&s.go_on);
        pthread_join(s.thread, NULL);
        model_destroy_context(r->model);
        EXPECT(!pool_revive(r->pool), "first all goes back");
        EXPECT(pool_is_vacant(r->pool), "once it has come");
        EXPECT_EQ(model_used_bytes(r->model), 0, "its own memory, too");
        r->count = 0;
        EXPECT_ENDS(r);
    }
}

enum { KINDS = 3 };
static const uint64_t sizes[KINDS] = {600, KIB(300), MIB(3)};

/* A pool that holds a live object, small block and large block, and has a magazine with others. */
static struct rig *with_three_kinds(bool single_stream, uint64_t addrs[KINDS])
{
    struct rig *r = rig_in(RIG_BYTES, false, single_stream);
    rig_start(r);
    for (unsigned i = 0; i < KINDS; i++) {
        rig_free(r, rig_alloc(r, sizes[i]));
        rig_free(r, rig_alloc(r, sizes[i]));
        addrs[i] = rig_alloc(r, sizes[i]);
    }
    return r;
}

/* A thread looks first at what it was handed out lately. Its blocks were live when their context
 * ended, and other pools may have their addresses since. */
TEST(what_it_had_handed_out_is_nobodys)
{
    for (unsigned single = 0; single < 2; single++) {
        uint64_t addrs[KINDS];
        struct rig *r = with_three_kinds(single, addrs);
        rig_free(r, rig_alloc(r, KIB(20)));
        model_destroy_context(r->model);
        pool_abandon(r->pool);
        for (unsigned i = 0; i < 3; i++) {
            EXPECT_EQ(pool_free(addrs[i]), POOL_FOREIGN, "it is no pool's");
            EXPECT(!pool_alloc_fast(r->pool, sizes[i]), "and nothing comes out of the magazine");
        }
        EXPECT_ENDS(r);
    }
}

static void next_context(struct rig *r)
{
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    r->count = 0;
    r->model->context_gone = false;
}

TEST(the_next_contexts_pool_may_be_the_same)
{
    enum { LIVES = 60 };
    for (unsigned backing = 0; backing < 2; backing++)
        for (unsigned single = 0; single < 2; single++) {
            struct rig *r = rig_in(RIG_BYTES, backing, single);
            const char *batches[4] = {0};
            rig_start(r);
            EXPECT(!pool_revive(r->pool), "it lives");
            for (unsigned life = 0; life < LIVES; life++) {
                if (life) {
                    next_context(r);
                    EXPECT_EQ(model_used_bytes(r->model), 0, "all memory went with its context");
                    EXPECT(pool_is_vacant(r->pool) && pool_revive(r->pool), "nobody is inside");
                    EXPECT(!pool_is_vacant(r->pool), "it lives");
                }
                ends_fill(r, false);
                for (unsigned i = 0; i < r->count; i++)
                    rig_launch(r, 1, MS(1), r->blocks[i].addr);
                EXPECT(!rig_check(r), rig_check(r));
                const struct pool *p = r->pool;
                const char *now[4] = {p->block_cache.batches, p->chunk_cache.batches,
                                      p->slab_caches[1].batches, p->magazine_cache.batches};
                if (life == 1)
                    memcpy(batches, now, sizeof now);
                EXPECT(life < 2 || !memcmp(batches, now, sizeof now), "no host memory was added");
            }
            EXPECT_EQ(rig_stats(r).num_allocs, LIVES * 20, "statistics go on");
            EXPECT_ENDS(r);
        }
}

/* What a thread was handed out in the last context, and still holds, in the pool of the next
 * one. */
TEST(what_it_had_handed_out_stays_nobodys)
{
    for (unsigned single = 0; single < 2; single++) {
        uint64_t addrs[KINDS];
        struct rig *r = with_three_kinds(single, addrs);
        next_context(r);
        EXPECT(pool_revive(r->pool), "nobody is inside");
        for (unsigned i = 0; i < 3; i++) {
            EXPECT(pool_free(addrs[i]) != POOL_OK, "it is not this pool's");
            EXPECT(!pool_alloc_fast(r->pool, sizes[i]), "and nothing comes out of the magazine");
        }
        ends_fill(r, false);
        for (unsigned i = 0; i < 3; i++) {
            struct pool_block found;
            bool lives = pool_lookup(addrs[i], &found) == POOL_OK && found.addr == addrs[i];
            EXPECT_EQ(pool_free(addrs[i]) == POOL_OK, lives, "unless it was handed out again");
            for (unsigned at = 0; at < r->count && lives; at++)
                if (r->blocks[at].addr == addrs[i])
                    r->blocks[at] = r->blocks[--r->count];
        }
        EXPECT_ENDS(r);
    }
}

/* Objects that were shared when their context ended have the same records in the next one. */
RIG_TEST(what_was_shared_is_not_in_the_next_context, *state)
{
    enum { OBJECTS = 200 };
    rig_start(r);
    for (unsigned i = 0; i < OBJECTS; i++)
        rig_expose(r, rig_alloc(r, 600));
    next_context(r);
    EXPECT(pool_revive(r->pool), "nobody is inside");
    rig_alloc_all(r, NULL, 2 * OBJECTS, 600);
    rig_free_all(r);
    rig_empty_magazines(r);
    EXPECT_EQ(rig_stats(r).num_exposed, 0, "none was shared here");
}

/* Its context ends while this thread is inside, and another thread wants the pool for the next
 * one. */
static void end_and_revive(struct model *m, enum model_row row)
{
    struct end *e = m->hook_arg;
    end_meanwhile(m, row);
    if (e->ended && (pool_is_vacant(e->pool) || pool_revive(e->pool)))
        e->calls = UINT64_MAX;
}

TEST(a_pool_is_not_anothers_while_a_thread_is_inside)
{
    unsigned ended = 0;
    for (unsigned step = 0; step < STEPS; step++)
        for (uint64_t at = 1; at <= MOMENTS; at++) {
            struct rig *r = rig_create(RIG_BYTES);
            struct end end = {.at = at};
            end_inside(r, step, &end, end_and_revive);
            if (end.ended) {
                EXPECT(end.calls != UINT64_MAX, "it goes on in what it knows");
                r->count = 0;
                /* The pool asked for an event of the old context. */
                r->model->context_gone = r->model->broken = false;
                EXPECT(pool_revive(r->pool), "now it is through");
                ends_fill(r, false);
                EXPECT(!rig_check(r), rig_check(r));
            }
            ended += end.ended;
            ends_destroy(r, "step and moment", 100 * step + at);
            if (!end.ended)
                break;
        }
    EXPECT(ended > 20, "it was tried at many moments");
}

/* What threads of the program may be at while one of them ends the context. */
static void *use_until_its_end(void *arg)
{
    struct pool *p = arg;
    struct pool_stats stats;
    uint64_t addr, requests = 0;
    for (int code; pool_alloc(p, 1 + requests % 7 * KIB(9), &addr, &code) == POOL_OK; requests++) {
        if (requests % 8)
            pool_free(addr);
        if (requests % 64 == 0)
            pool_alloc(p, MIB(3), &addr, &code);
        if (requests % 256 == 0)
            pool_trim(p, &(struct pool_trim){.keep_bytes = MIB(8)});
        pool_submit(p, requests % 3);
    }
    pool_stats(p, &stats);
    pool_tick(p, NULL);
    pool_for_each_range(p, ignore, NULL);
    return NULL;
}

/* To be run under TSan: nothing of the pool is written without its lock. */
TEST(threads_may_be_inside_a_pool_that_ends)
{
    for (unsigned round = 0; round < 30; round++) {
        struct rig *r = rig_in(RIG_BYTES, round % 2, false);
        pthread_t threads[3];
        r->config.max_idle_bytes = MIB(4);
        rig_start(r);
        for (unsigned i = 0; i < 3; i++)
            threads[i] = started(use_until_its_end, r->pool);
        uint64_t addr;
        int code;
        for (unsigned i = 0; i < 200 && pool_alloc(r->pool, KIB(700), &addr, &code) == POOL_OK; i++)
            pool_free(addr);
        model_destroy_context(r->model);
        pool_abandon(r->pool);
        for (unsigned i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        EXPECT(pool_alloc(r->pool, KIB(1), &addr, &code) != POOL_OK, "it is at its end");
        ends_destroy(r, "round", round);
    }
}

static atomic_bool looked_enough;

/* With pauses: a pool is revived while nobody is inside, and unoptimized a look is long. */
static void *look(void *arg)
{
    while (!atomic_load(&looked_enough)) {
        pool_for_each_range(arg, ignore, NULL);
        usleep(20);
    }
    return NULL;
}

/* To be run under TSan. */
TEST(a_pool_is_looked_at_while_it_is_revived)
{
    struct rig *r = rig_create(RIG_BYTES);
    rig_start(r);
    pthread_t thread = started(look, r->pool);
    for (unsigned life = 0; life < 300; life++) {
        next_context(r);
        while (!pool_revive(r->pool))
            sched_yield();
    }
    atomic_store(&looked_enough, true);
    pthread_join(thread, NULL);
    EXPECT_ENDS(r);
}

PLAY_TESTS
