/* SPDX-License-Identifier: BSD-2-Clause */
/* state_yield: what other threads do to a pool in the middle of long work of another one, where
 * no driver is called. */
#include "pool/magazine.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#include <semaphore.h>

#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1
#endif
enum { LEAST = 20 / FEWER_ROUNDS };

/* Done at breath number `at`, once. */
static struct breath {
    void (*step)(void);
    unsigned at, count;
    bool done;
} breath;
static struct rig *rig;

int sched_yield(void)
{
    if (!breath.step || breath.done || ++breath.count < breath.at)
        return 0;
    breath.done = true;
    breath.step();
    return 0;
}

/* Threads that have a magazine with one object in it, as long as they are there. */
enum { THREADS = 24, OBJECT = 700, OBJECT_UNITS = 2 };
static struct holder {
    pthread_t thread;
    sem_t there, go;
} holders[THREADS + 1];

static void *hold(void *arg)
{
    struct holder *h = arg;
    for (int i = 0; i < 2; i++) {
        uint64_t addr;
        int code;
        if (pool_alloc(rig->pool, OBJECT, &addr, &code) == POOL_OK)
            pool_free(addr);
    }
    sem_post(&h->there);
    sem_wait(&h->go);
    return NULL;
}

static void start(struct holder *h)
{
    sem_init(&h->there, 0, 0);
    sem_init(&h->go, 0, 0);
    h->thread = started(hold, h);
    sem_wait(&h->there);
}

static void stop(struct holder *h)
{
    sem_post(&h->go);
    pthread_join(h->thread, NULL);
    sem_destroy(&h->there);
    sem_destroy(&h->go);
}

/* Much that is ready, not yet retired, and full magazines. */
static void set_up(bool segments, bool idle)
{
    enum { BLOCKS = 1400 };
    uint64_t addrs[BLOCKS];
    rig = rig_in(MIB(320), segments, false);
    if (idle)
        rig->config.max_idle_bytes = MIB(1);
    rig_start(rig);
    for (unsigned i = 0; i < BLOCKS; i++)
        addrs[i] = rig_alloc(rig, i % 2 ? KIB(40) : 3000);
    rig_launch(rig, 1, MS(1), addrs[0]);
    rig_launch(rig, 2, MS(1), addrs[1]);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (i % 7)
            rig_free(rig, addrs[i]);
    for (unsigned i = 0; i < THREADS; i++)
        start(&holders[i]);
    rig_launch(rig, 1, 0, 0);
    model_drain(rig->model);
}

static const uint64_t requests[] = {700, KIB(900), MIB(24), MIB(300)}; /* too much at last */
enum { REQUESTS = sizeof requests / sizeof *requests, TRIM = REQUESTS, TICK, RELEASE, CALLS };

static void make(unsigned call)
{
    if (call < REQUESTS)
        rig_alloc(rig, requests[call]);
    else if (call == TRIM)
        rig_trim(rig, 0, false);
    else if (call == TICK)
        pool_tick(rig->pool, NULL);
    else
        pool_release(rig->pool, POOL_RELEASE_PENDING);
}

static void lose(void)
{
    pool_lose(rig->pool);
    rig->lost = true;
}

static void end(void)
{
    model_destroy_context(rig->model);
    pool_abandon(rig->pool);
    EXPECT(!pool_is_vacant(rig->pool) && !pool_revive(rig->pool), "a thread is inside");
}

static void *use(void *arg)
{
    uint64_t addrs[40];
    int code;
    for (unsigned i = 0; i < 40; i++)
        if (pool_alloc(rig->pool, i % 3 ? KIB(40) : MIB(2), &addrs[i], &code) != POOL_OK)
            addrs[i] = 0;
    for (unsigned i = 0; i < 40; i++)
        if (addrs[i])
            pool_free(addrs[i]);
    pool_trim(rig->pool, &(struct pool_trim){0});
    return NULL;
}

static void use_elsewhere(void)
{
    pthread_join(started(use, NULL), NULL);
}

/* Makes each call with the step in each of its breaths, or some; how often there was one. */
static unsigned at_each_breath(void (*step)(void))
{
    unsigned done = 0;
    for (unsigned segments = 0; segments < 2; segments++)
        for (unsigned call = 0; call < CALLS; call++)
            for (unsigned at = 1;; at += FEWER_ROUNDS) {
                set_up(segments, call == TICK);
                uint32_t live = rig->count;
                breath = (struct breath){.step = step, .at = at};
                make(call);
                breath.step = NULL;
                bool did = breath.done;
                done += did;
                if (did && step != use_elsewhere && rig->count > live)
                    fail_msg("segments %u, call %u, breath %u: memory was handed out", segments,
                             call, at);
                if (did && step == end) {
                    EXPECT_EQ(model_used_bytes(rig->model), 0, "all memory went with its context");
                    EXPECT(pool_is_vacant(rig->pool), "nobody is inside");
                }
                for (unsigned i = 0; i < THREADS; i++)
                    stop(&holders[i]);
                const char *words = rig_destroy(rig);
                if (words &&
                    !(did && step != use_elsewhere && strcmp(words, "a fence is left") == 0))
                    fail_msg("segments %u, call %u, breath %u: %s", segments, call, at, words);
                if (!did)
                    break;
            }
    return done;
}

TEST_IS(a_pool_that_is_lost_meanwhile_hands_nothing_out,
        EXPECT(at_each_breath(lose) > LEAST, "there are such moments"))
TEST_IS(a_pool_that_ends_meanwhile_hands_nothing_out,
        EXPECT(at_each_breath(end) > LEAST, "there are such moments"))
TEST_IS(others_may_use_it_meanwhile,
        EXPECT(at_each_breath(use_elsewhere) > LEAST, "there are such moments"))

static void start_another(void)
{
    start(&holders[THREADS]);
}

static uint64_t cached_units(void)
{
    uint64_t units = 0;
    state_lock(rig->pool);
    list_for_each(n, tmp, &rig->pool->magazines)
        units += magazine_units(list_entry(n, struct magazine, link));
    state_unlock(rig->pool);
    return units;
}

TEST(a_magazine_made_meanwhile_keeps_no_other_from_being_emptied)
{
    for (unsigned at = 1; at <= THREADS / 8; at++) {
        set_up(false, false);
        EXPECT(cached_units() >= THREADS * OBJECT_UNITS, "each has something");
        breath = (struct breath){.step = start_another, .at = at};
        rig_empty_magazines(rig);
        breath.step = NULL;
        EXPECT(breath.done, "there is such a moment");
        EXPECT(cached_units() <= OBJECT_UNITS, "what is left lies in that one");
        for (unsigned i = 0; i <= THREADS; i++)
            stop(&holders[i]);
        EXPECT_ENDS(rig);
    }
}

PLAY_TESTS
