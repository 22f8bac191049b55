/* SPDX-License-Identifier: BSD-2-Clause */
/* Eight threads on one pool allocate, free each other's memory, submit work on several streams and
 * trim. The model watches for memory that is used too early, and the test for blocks that overlap.
 * To be run under TSan and ASan as well. */
#include "tests/unit/expect.h"

#define THREADS 8
#define SLOTS 192
#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1 /* a divisor */
#endif
#define ROUNDS (12 / FEWER_ROUNDS)
#define STEPS 400

struct slot {
    uint64_t addr, size_bytes, owner;
    bool busy; /* in a thread's hands */
};

static struct shared {
    pthread_mutex_t lock; /* of slots, owners and error */
    struct rig *rig;
    struct slot slots[SLOTS];
    uint64_t owners;
    const char *error;
    atomic_bool several_streams;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void blame(const char *words)
{
    if (!shared.error)
        shared.error = words;
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static uint64_t random_size(uint64_t *state)
{
    uint32_t r = random_next(state);
    if (r % 4 == 0)
        return MIB(1) + (r >> 8) % MIB(5);
    return 1 + (r >> 8) % (r % 4 == 1 ? KIB(300) : 3000);
}

/* A random slot, full or empty as wanted, taken into this thread's hands; NULL: not this time. */
static struct slot *take_slot(uint64_t *state, bool full)
{
    struct slot *found = NULL;
    uint32_t at = random_next(state);
    pthread_mutex_lock(&shared.lock);
    for (int i = 0; i < 8 && !found; i++) {
        struct slot *s = &shared.slots[(at + (uint32_t)i) % SLOTS];
        if (!s->busy && (s->addr != 0) == full)
            found = s;
    }
    if (found)
        found->busy = true;
    pthread_mutex_unlock(&shared.lock);
    return found;
}

static void put_slot(struct slot *s)
{
    pthread_mutex_lock(&shared.lock);
    s->busy = false;
    pthread_mutex_unlock(&shared.lock);
}

static void fill(struct slot *s, uint64_t addr, uint64_t size_bytes)
{
    pthread_mutex_lock(&shared.lock);
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *o = &shared.slots[i];
        if (o->addr && o->addr < addr + size_bytes && addr < o->addr + o->size_bytes)
            blame("live blocks do not overlap");
    }
    s->addr = addr;
    s->size_bytes = size_bytes;
    s->owner = ++shared.owners;
    pthread_mutex_unlock(&shared.lock);
}

static void step_alloc(struct rig *r, uint64_t *state)
{
    struct slot *s = take_slot(state, false);
    uint64_t addr, size = random_size(state);
    int code = 0;
    if (!s)
        return;
    if (pool_alloc(r->pool, size, &addr, &code) == POOL_OK) {
        if (atomic_load(&shared.several_streams))
            model_check_handed_out(r->model, addr, size, false);
        fill(s, addr, size);
    }
    put_slot(s);
}

static void step_free(struct rig *r, uint64_t *state)
{
    struct slot *s = take_slot(state, true);
    if (!s)
        return;
    uint64_t addr = s->addr;
    pthread_mutex_lock(&shared.lock);
    s->addr = 0;
    pthread_mutex_unlock(&shared.lock);
    if (pool_free(addr) != POOL_OK)
        blame("a live block can be freed");
    put_slot(s);
}

static void step_launch(struct rig *r, uint64_t *state, unsigned streams)
{
    struct slot *s = take_slot(state, true);
    unsigned stream = random_next(state) % streams;
    if (!s)
        return;
    if (stream)
        pool_leave_single_stream(r->pool);
    if (atomic_load(&pool_watch))
        pool_submit(r->pool, stream);
    model_submit(r->model, stream, random_next(state) % MS(2), s->addr, s->size_bytes, s->owner);
    put_slot(s);
}

struct worker {
    pthread_t thread;
    uint64_t state;
    unsigned streams; /* that it uses in this round */
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct rig *r = shared.rig;
    for (int i = 0; i < STEPS; i++) {
        uint32_t what = random_next(&w->state) % 100;
        if (what < 40)
            step_alloc(r, &w->state);
        else if (what < 75)
            step_free(r, &w->state);
        else if (what < 92)
            step_launch(r, &w->state, w->streams);
        else if (what < 97)
            model_advance(r->model, random_next(&w->state) % MS(1));
        else if (what < 98)
            pool_trim(r->pool, &(struct pool_trim){.keep_bytes = MIB(8)});
        else
            pool_tick(r->pool, NULL);
    }
    return NULL;
}

/* What a thread besides the workers does to the pool. Between rounds nothing is under way. */
static pthread_mutex_t besides = PTHREAD_MUTEX_INITIALIZER;

static void run_rounds(struct rig *r, bool single, uint64_t seed)
{
    struct worker workers[THREADS];
    shared.rig = r;
    shared.error = NULL;
    atomic_store(&shared.several_streams, !single);
    r->model->late_allowed = true; /* whose free came last is not known here */
    for (int round = 0; round < ROUNDS; round++) {
        /* With one stream at first; the second one comes up in the middle of a round. */
        for (unsigned i = 0; i < THREADS; i++) {
            bool many = !single || (round == ROUNDS / 3 && i == 3) || round > ROUNDS / 3;
            workers[i].streams = many ? MODEL_STREAMS : 1;
            workers[i].state = seed * 1000 + (uint64_t)round * THREADS + i;
            workers[i].thread = started(work, &workers[i]);
        }
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(workers[i].thread, NULL);
        if (round == ROUNDS / 3)
            atomic_store(&shared.several_streams, true);
        if (shared.error)
            fail_msg("broken: %s", shared.error);
        pthread_mutex_lock(&besides);
        const char *words = rig_check(r);
        pthread_mutex_unlock(&besides);
        if (words)
            fail_msg("broken: %s", words);
    }
    r->several_streams = true;
    for (int i = 0; i < SLOTS; i++)
        if (shared.slots[i].addr) {
            EXPECT_EQ(pool_free(shared.slots[i].addr), POOL_OK, "what is left can be freed");
            shared.slots[i].addr = 0;
        }
}

POOL_TEST_IS(threads_share_an_arena, run_rounds(expect_arena(state), false, 1))
POOL_TEST_IS(threads_share_segments, run_rounds(expect_segments(state), false, 2))
POOL_TEST_IS(threads_leave_the_single_stream, run_rounds(expect_single(state), true, 3))

TEST(threads_on_a_device_that_is_too_small)
{
    for (int segments = 0; segments < 2; segments++) {
        struct rig *r = rig_in(MIB(96), segments, false);
        rig_start(r);
        run_rounds(r, false, 4 + (uint64_t)segments);
        EXPECT_ENDS(r);
    }
}

RIG_TEST(threads_under_limits, *state)
{
    r->config.max_reserved_bytes = MIB(100);
    r->config.max_idle_bytes = MIB(8);
    r->config.idle_timeout_ns = MS(2);
    r->config.reuse = REUSE_READY;
    rig_start(r);
    run_rounds(r, false, 6);
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(100), "the limit is kept by all together");
}

static atomic_bool changes_over;

/* Changes all that can change, until it is told to stop. */
static void *change_config(void *arg)
{
    struct rig *r = arg;
    struct pool_config c = r->config;
    uint64_t state = 99;
    while (!atomic_load(&changes_over)) {
        uint32_t which = random_next(&state), size = random_next(&state);
        c.max_reserved_bytes = which & 1 ? UINT64_MAX : size % MIB(200);
        c.max_idle_bytes = which & 2 ? UINT64_MAX : size % MIB(20);
        c.min_free_bytes = which & 4 ? 0 : size % MIB(500);
        c.idle_timeout_ns = which & 8 ? 0 : MS(size % 10);
        c.reuse = (enum pool_reuse)(which >> 4 & 3);
        pthread_mutex_lock(&besides);
        pool_set_config(r->pool, &c);
        if (pool_tick_ns(r->pool))
            pool_tick(r->pool, NULL);
        pthread_mutex_unlock(&besides);
        usleep(300);
    }
    return NULL;
}

TEST(threads_under_limits_that_change)
{
    for (int segments = 0; segments < 2; segments++) {
        struct rig *r = rig_in(MIB(256), segments, false);
        rig_start(r);
        atomic_store(&changes_over, false);
        pthread_t changer = started(change_config, r);
        run_rounds(r, false, 9 + (uint64_t)segments);
        atomic_store(&changes_over, true);
        pthread_join(changer, NULL);
        EXPECT_ENDS(r);
    }
}

RIG_TEST(threads_without_order, *state)
{
    r->model->backend.has_order = false;
    r->model->backend.single_stream = true;
    rig_start(r);
    run_rounds(r, true, 7);
}

RIG_TEST(threads_that_wait_in_every_free, EXPECT_WITH(state, config.sync_free, true))
{
    run_rounds(r, false, 8);
}

/* Frees one block over and over; the same thread's next submission is told of each. Returns how
 * often it was not. */
static void *free_and_look(void *arg)
{
    struct rig *r = shared.rig;
    uintptr_t missed = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t addr;
        int code;
        if (pool_alloc(r->pool, KIB(4), &addr, &code) != POOL_OK)
            return (void *)UINTPTR_MAX;
        uint64_t seals = atomic_load(&pool_seals);
        pool_free(addr);
        missed +=
            !(atomic_load(&pool_watch) & POOL_WATCH_UNSEALED) && atomic_load(&pool_seals) == seals;
        pool_submit(r->pool, 0);
    }
    return (void *)missed;
}

POOL_TEST(submissions_are_told_of_a_free_whose_epoch_another_thread_marked)
{
    pthread_t threads[THREADS];
    shared.rig = expect_single(state);
    for (int i = 0; i < THREADS; i++)
        threads[i] = started(free_and_look, NULL);
    uintptr_t missed = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        missed += (uintptr_t)result;
    }
    EXPECT_EQ(missed, 0, "in pool_watch until its epoch is closed, from then on in pool_seals");
}

PLAY_TESTS
