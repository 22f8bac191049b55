/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/job.c: threads that work on device memory, and threads that change the access to it, take
 * turns. */
#include "pool/job.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#include <unistd.h>

/* A thread in a job or a walk of its own, until goes_on. */
struct worker {
    struct pool *pool;
    atomic_bool is_there, goes_on;
    pthread_t thread;
    void (*step)(struct pool *p);
};

static bool await_flag(atomic_bool *flag)
{
    for (unsigned turn = 0; turn < 200000 && !atomic_load(flag); turn++)
        usleep(100);
    return atomic_load(flag);
}

static void stay(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct worker *w = arg;
    atomic_store(&w->is_there, true);
    await_flag(&w->goes_on);
}

static void *walk(void *arg)
{
    struct worker *w = arg;
    pool_for_each_range(w->pool, stay, w);
    return NULL;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    LOCKED(w->pool, job_begin(w->pool));
    stay(w, 0, 0);
    LOCKED(w->pool, job_end(w->pool); state_job_done(w->pool));
    return NULL;
}

static unsigned count_jobs(struct pool *p)
{
    unsigned jobs;
    LOCKED(p, jobs = p->unlocked_jobs);
    return jobs;
}

/* Returns when the thread runs or waits. */
static void begin(struct worker *w, struct pool *p, void *(*run)(void *arg))
{
    unsigned jobs = count_jobs(p);
    w->pool = p;
    w->thread = started(run, w);
    while (count_jobs(p) == jobs)
        usleep(100);
}

static void end(struct worker *w)
{
    atomic_store(&w->goes_on, true);
    pthread_join(w->thread, NULL);
}

static bool waits(struct worker *w)
{
    usleep(20000);
    return !atomic_load(&w->is_there);
}

/* Memory under way, and memory of a later job, would lack the right. And the driver bears no other
 * work on memory beside a change of access. */
RIG_TEST(a_walk_and_jobs_exclude_each_other, expect_arena(state))
{
    struct worker first = {.pool = NULL}, walker = first, later = first;
    rig_alloc(r, MIB(6));
    begin(&first, r->pool, work);
    begin(&walker, r->pool, walk);
    EXPECT(waits(&walker), "the walk waits for the job");
    begin(&later, r->pool, work);
    EXPECT(waits(&later), "a later job waits for the walk");
    end(&first);
    EXPECT(await_flag(&walker.is_there), "the walk goes on");
    EXPECT(waits(&later), "the job waits for its end");
    end(&walker);
    EXPECT(await_flag(&later.is_there), "both are through");
    end(&later);
    EXPECT_EQ(count_jobs(r->pool), 0, "and counted");
}

/* A program enables and disables access in a loop: another thread must get its memory meanwhile. */
RIG_TEST(a_job_that_waits_runs_before_a_later_walk, expect_arena(state))
{
    struct worker first = {.pool = NULL}, job = first, second = first;
    rig_alloc(r, MIB(6));
    begin(&first, r->pool, walk);
    EXPECT(await_flag(&first.is_there), "the walk runs");
    begin(&job, r->pool, work);
    begin(&second, r->pool, walk);
    EXPECT(waits(&job) && waits(&second), "both wait for it");
    end(&first);
    EXPECT(await_flag(&job.is_there), "the job came first");
    EXPECT(waits(&second), "the second walk waits for it");
    end(&job);
    EXPECT(await_flag(&second.is_there), "then it runs");
    end(&second);
}

RIG_TEST(those_of_a_kind_run_beside_each_other, expect_arena(state))
{
    void *(*const kinds[])(void *arg) = {walk, work};
    rig_alloc(r, MIB(6));
    for (unsigned kind = 0; kind < 2; kind++) {
        struct worker other = {.pool = NULL}, first = other, second = other;
        begin(&other, r->pool, kinds[!kind]);
        begin(&first, r->pool, kinds[kind]);
        begin(&second, r->pool, kinds[kind]);
        EXPECT(waits(&first) && waits(&second), "they wait for the other kind");
        end(&other);
        EXPECT(await_flag(&first.is_there) && await_flag(&second.is_there), "together");
        end(&first);
        end(&second);
    }
}

static void give_back(struct pool *p)
{
    pool_trim(p, &(struct pool_trim){.wait_ns = 0});
}

static void grow(struct pool *p)
{
    uint64_t addr;
    int code;
    assert_int_equal(pool_alloc(p, MIB(20), &addr, &code), POOL_OK);
    assert_int_equal(pool_free(addr), POOL_OK);
}

static void wake(struct pool *p)
{
    assert_int_equal(pool_wake_begin(p), 0);
}

static void park(struct pool *p)
{
    assert_true(pool_park_end(p, true) > 0);
}

static void release(struct pool *p)
{
    pool_release(p, POOL_RELEASE_IDLE);
}

static void *take_step(void *arg)
{
    struct worker *w = arg;
    w->step(w->pool);
    atomic_store(&w->is_there, true);
    return NULL;
}

/* All that works on memory, and a request without memory, which waits for those. */
RIG_TEST(each_job_waits_for_a_walk, expect_arena(state))
{
    void (*const steps[])(struct pool *p) = {grow, give_back, wake, park, release};
    rig_written(r, MIB(40));
    EXPECT(rig_park(r, 0, 0, false), "something is away");
    rig_alloc(r, MIB(6)); /* for the walk */
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct worker walker = {.pool = NULL}, w = {.pool = r->pool, .step = steps[i]};
        begin(&walker, r->pool, walk);
        EXPECT(await_flag(&walker.is_there), "the walk runs");
        w.thread = started(take_step, &w);
        EXPECT(waits(&w), "the step waits");
        end(&walker);
        EXPECT(await_flag(&w.is_there), "then it comes to its end");
        end(&w);
    }
    EXPECT_EQ(rig_wake(r), 0, "nothing was lost");
}

static void *let_time_pass(void *arg)
{
    struct rig *r = arg;
    for (bool waiting = false; !waiting; usleep(100))
        LOCKED(r->pool, waiting = r->pool->jobs.waiting[JOB_WALK] > 0);
    model_advance(r->model, OOM_WAIT_NS);
    return NULL;
}

/* As one that was left by a jump. */
RIG_TEST(a_wait_for_a_job_that_does_not_end_ends, expect_arena(state))
{
    struct worker first = {.pool = NULL}, later = first;
    struct pool *p = r->pool;
    begin(&first, p, work);
    pthread_t clock = started(let_time_pass, r);
    LOCKED(p, job_begin_walk(p); job_end_walk(p));
    pthread_join(clock, NULL);
    begin(&later, p, walk);
    end(&first);
    end(&later);
    EXPECT_EQ(count_jobs(p), 0, "all go on as before");
}

/* As a signal handler does in a thread that is at work. Time stands still. */
RIG_TEST(no_thread_waits_for_its_own_job, expect_arena(state))
{
    struct worker later = {.pool = NULL};
    struct pool *p = r->pool;
    LOCKED(p, job_begin(p));
    LOCKED(p, job_begin_walk(p); job_end_walk(p));
    LOCKED(p, job_await_all(p, 0));
    LOCKED(p, EXPECT(job_await_any(p, 0), "there is no other"));
    begin(&later, p, walk);
    EXPECT(waits(&later), "others do");
    LOCKED(p, job_end(p); state_job_done(p));
    end(&later);
    EXPECT_EQ(count_jobs(p), 0, "all go on as before");
}

/* A request for more than the device has. */
static void ask_too_much(struct pool *p)
{
    uint64_t addr;
    int code;
    assert_int_equal(pool_alloc(p, RIG_BYTES - MIB(1), &addr, &code), POOL_NOMEM);
}

static void ask_inside(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct worker *w = arg;
    if (!atomic_exchange(&w->is_there, true))
        ask_too_much(w->pool);
}

/* Lets time pass whenever a thread waits for its turn. */
static void *pass_turns(void *arg)
{
    struct rig *r = arg;
    struct pool *p = r->pool;
    for (bool ends = false; !ends; usleep(1000)) {
        unsigned waiting;
        LOCKED(p, waiting = p->jobs.waiting[JOB_OF_MEMORY]; ends = p->stats.live_blocks == 0);
        if (waiting)
            model_advance(r->model, OOM_WAIT_NS / 10);
    }
    return NULL;
}

static uint64_t model_now_ns(const struct rig *r)
{
    return r->model->backend.ops->now_ns(&r->model->backend);
}

RIG_TEST(a_signal_handler_in_a_walk_waits_for_no_end_of_it, expect_arena(state))
{
    struct worker w = {.pool = r->pool};
    uint64_t block = rig_alloc(r, MIB(6)), begin_ns = model_now_ns(r);
    pthread_t clock = started(pass_turns, r);
    pool_for_each_range(r->pool, ask_inside, &w);
    EXPECT(atomic_load(&w.is_there), "it asked");
    EXPECT(model_now_ns(r) - begin_ns < OOM_WAIT_NS, "and waited for nobody");
    rig_free(r, block);
    pthread_join(clock, NULL);
    EXPECT_EQ(count_jobs(r->pool), 0, "nobody is left");
}

RIG_TEST(a_request_beside_a_walk_that_does_not_end_comes_to_an_end, expect_arena(state))
{
    struct worker walker = {.pool = NULL};
    uint64_t block = rig_alloc(r, MIB(6));
    rig_free(r, rig_alloc(r, MIB(40)));
    begin(&walker, r->pool, walk);
    EXPECT(await_flag(&walker.is_there), "the walk runs");
    uint64_t begin_ns = model_now_ns(r);
    pthread_t clock = started(pass_turns, r);
    ask_too_much(r->pool);
    EXPECT(model_now_ns(r) - begin_ns < 8 * OOM_WAIT_NS, "each step waited once");
    end(&walker);
    rig_free(r, block);
    pthread_join(clock, NULL);
}

PLAY_TESTS
