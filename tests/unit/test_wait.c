/* SPDX-License-Identifier: BSD-2-Clause */
/* What a thread waits for that another thread of the program has in work: memory on its way to the
 * driver, a record, the end of the single-stream mode. */
#include "pool/single_stream.h"
#include "pool/state.h"
#include "tests/unit/expect.h"
#include "tests/unit/leaver.h"
#include "tests/unit/proc.h"

#include <semaphore.h>
#include <sys/syscall.h>

/* One thread gives memory back, and stops before the driver has it. Another one comes meanwhile. */
struct scene {
    struct rig *rig;
    sem_t there, go_on;
    pthread_t giver, comer;
    atomic_bool is_through;
    uint64_t size_bytes, addr;
    bool some;
};

static atomic_int comer_tid;

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void stop(struct model *m)
{
    struct scene *s = m->hook_arg;
    m->hook_unmap = NULL;
    sem_post(&s->there);
    sem_wait(&s->go_on);
}

static void *give_back(void *arg)
{
    struct scene *s = arg;
    pool_trim(s->rig->pool, &(struct pool_trim){.wait_ns = MS(1)});
    return NULL;
}

static void *release(void *arg)
{
    struct scene *s = arg;
    atomic_store(&comer_tid, (int)syscall(SYS_gettid));
    s->some = pool_release(s->rig->pool, POOL_RELEASE_IDLE);
    atomic_store(&s->is_through, true);
    return NULL;
}

static void *request(void *arg)
{
    struct scene *s = arg;
    int code;
    atomic_store(&comer_tid, (int)syscall(SYS_gettid));
    s->some = pool_alloc(s->rig->pool, s->size_bytes, &s->addr, &code) == POOL_OK;
    atomic_store(&s->is_through, true);
    return NULL;
}

/* Does the comer wait, or is it through? Then the giver goes on, and both end. */
static bool waits(struct scene *s, void *(*come)(void *arg))
{
    sem_init(&s->there, 0, 0);
    sem_init(&s->go_on, 0, 0);
    s->rig->model->hook_arg = s;
    s->rig->model->hook_unmap = stop;
    s->giver = started(give_back, s);
    sem_wait(&s->there);
    atomic_store(&comer_tid, 0);
    s->comer = started(come, s);
    for (int seen = 0; seen < 5 && !atomic_load(&s->is_through); pause_ms(1))
        seen = task_state(getpid(), atomic_load(&comer_tid)) == 'S' ? seen + 1 : 0;
    bool waiting = !atomic_load(&s->is_through);
    sem_post(&s->go_on);
    pthread_join(s->giver, NULL);
    pthread_join(s->comer, NULL);
    sem_destroy(&s->there);
    sem_destroy(&s->go_on);
    return waiting;
}

/* The driver was short of memory for another call, which is made again after this. */
RIG_TEST(a_release_waits_for_memory_on_its_way_to_the_driver, expect_arena(state))
{
    struct scene s = {.rig = r};
    rig_alloc(r, MIB(4));
    rig_free(r, rig_alloc(r, MIB(40)));
    EXPECT(waits(&s, release), "another thread's idle memory is not yet the driver's");
    EXPECT(s.some, "then some has gone back");
}

RIG_TEST(a_request_waits_for_memory_on_its_way_to_the_driver, expect_arena(state))
{
    struct scene s = {.rig = r, .size_bytes = MIB(200)};
    rig_alloc(r, MIB(256));
    rig_free(r, rig_alloc(r, MIB(240)));
    EXPECT(waits(&s, request), "the driver has too little until then");
    EXPECT(s.some, "then it is enough");
    EXPECT_EQ(rig_stats(r).num_ooms, 0, "no request failed");
    EXPECT_EQ(pool_free(s.addr), POOL_OK, "it has its memory");
}

/* Where the driver is at its end, another thread gives memory back each time just too late. */
struct late {
    struct rig *rig;
    uint64_t exposed[4];
    int left;
};

static void free_too_late(struct model *m, enum model_row row)
{
    struct late *l = m->hook_arg;
    if (row != MODEL_ROW_segment_alloc || !l->left)
        return;
    rig_free(l->rig, l->exposed[--l->left]);
    model_fail(m, MODEL_ROW_segment_alloc, 1, MODEL_NOMEM);
}

POOL_TEST(as_long_as_memory_comes_back_a_request_tries_again)
{
    struct rig *r = *state;
    r->model->backend.total_bytes = MIB(64);
    r = expect_segments(state);
    struct late l = {.rig = r, .left = 4};
    for (int i = 0; i < 4; i++)
        rig_expose(r, l.exposed[i] = rig_alloc(r, MIB(8)));
    rig_hook(r, free_too_late, &l);
    EXPECT(rig_alloc(r, MIB(16)), "at last it is there");
    EXPECT_EQ(l.left, 0, "after four refusals");
    r->model->hook = NULL;
}

/* While one thread leaves the stream, another one is about to submit work to a third stream. */
struct leaving {
    struct leaver second;
    bool asked, was_through;
};

static void leave_too(struct model *m, enum model_row row)
{
    struct leaving *l = m->hook_arg;
    if (row != MODEL_ROW_fence_order || l->asked)
        return;
    l->asked = true;
    l->second.thread = started(leave, &l->second);
    for (int turn = 0; turn < 30 && !atomic_load(&l->second.is_through); turn++)
        pause_ms(1);
    l->was_through = atomic_load(&l->second.is_through);
}

RIG_TEST(leaving_waits_for_a_thread_that_leaves, expect_single(state))
{
    struct leaving l = {.second.pool = r->pool};
    rig_pending(r, 0, MS(20), MIB(4));
    rig_hook(r, leave_too, &l);
    pool_leave_single_stream(r->pool);
    EXPECT(l.asked, "the first thread orders later work");
    pthread_join(l.second.thread, NULL);
    EXPECT(!l.was_through, "until then no work for another stream may be submitted");
    r->several_streams = true;
}

/* .. and the first one does not come back from the driver. */
static void leave_for_it(struct model *m, enum model_row row)
{
    struct leaving *l = m->hook_arg;
    if (row != MODEL_ROW_fence_record || l->asked)
        return;
    l->asked = true;
    l->second.thread = started(leave, &l->second);
    pause_ms(30);
    l->was_through = atomic_load(&l->second.is_through);
    for (int turn = 0; turn < 200 && !atomic_load(&l->second.is_through); turn++, pause_ms(5))
        model_advance(m, OOM_WAIT_NS / 4);
}

RIG_TEST(a_thread_that_never_leaves_is_not_waited_for_for_ever, expect_single(state))
{
    struct leaving l = {.second.pool = r->pool};
    uint64_t late = rig_pending(r, 0, MS(1000000), MIB(4));
    EXPECT_EQ(rig_alloc(r, MIB(4)), late, "stream order alone makes it ready");
    rig_hook(r, leave_for_it, &l);
    pool_leave_single_stream(r->pool);
    EXPECT(l.asked && !l.was_through, "the second thread waits");
    EXPECT(atomic_load(&l.second.is_through), "for a while");
    pthread_join(l.second.thread, NULL);
    EXPECT(!r->pool->fences.lost, "it has ordered later work behind a record of its own");
    r->several_streams = true;
    rig_launch(r, 1, MS(1), late);
}

static void submit_meanwhile(struct model *m, enum model_row row)
{
    struct rig *r = m->hook_arg;
    if (row != MODEL_ROW_fence_record)
        return;
    m->hook = NULL;
    pool_submit(r->pool, 1);
}

/* Work that is submitted before the record would make the fence late. */
RIG_TEST(a_submission_waits_for_a_record_under_way, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(4));
    rig_launch(r, 1, MS(1), a);
    rig_free_behind(r, 2, MS(1), a);
    unsigned before = atomic_load(&turns_waited);
    rig_hook(r, submit_meanwhile, r);
    pool_seal(r->pool);
    EXPECT(!r->model->hook, "a record was under way");
    EXPECT_EQ(atomic_load(&turns_waited) - before, FENCE_SUBMIT_TURNS,
              "it looked again until it may wait no longer");
}

PLAY_TESTS
