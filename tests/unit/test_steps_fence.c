/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/fence.c: a submission looks without the lock whether something has to be recorded before it,
 * while another thread's record is refused because of a capture. Whatever it saw, either it comes
 * for the lock, or the epoch is marked late: no thread may wait for work that came after the frees.
 */
#include "tests/unit/steps.h"
/* After it. */
#include "pool/fence.c"
#include "tests/unit/expect.h"

#include <semaphore.h>

/* Another thread seals; inside its record it waits to go on. */
struct sealer {
    struct rig *rig;
    pthread_t thread;
    sem_t recording, go_on;
    bool joined;
};

static void *seal(void *arg)
{
    struct sealer *s = arg;
    LOCKED(s->rig->pool, fence_seal(s->rig->pool));
    return NULL;
}

static void stop_in_record(struct model *m, enum model_row row)
{
    struct sealer *s = m->hook_arg;
    if (row != MODEL_ROW_fence_record)
        return;
    sem_post(&s->recording);
    sem_wait(&s->go_on);
}

/* Starts it. It is inside its record then. */
static void sealer_begin(struct sealer *s, struct rig *r)
{
    s->rig = r;
    sem_init(&s->recording, 0, 0);
    sem_init(&s->go_on, 0, 0);
    rig_hook(r, stop_in_record, s);
    s->thread = started(seal, s);
    sem_wait(&s->recording);
}

static void finish_the_record(void *arg)
{
    struct sealer *s = arg;
    if (s->joined)
        return;
    s->joined = true;
    sem_post(&s->go_on);
    pthread_join(s->thread, NULL);
    s->rig->model->hook = NULL;
    sem_destroy(&s->recording);
    sem_destroy(&s->go_on);
}

/* False: there is no moment number `at` in it. */
static bool submit_while_a_record_is_refused(unsigned at)
{
    struct rig *r = rig_create(RIG_BYTES);
    struct sealer s = {.joined = false};
    rig_start(r);
    struct fences *f = &r->pool->fences;
    uint64_t a = rig_alloc(r, MIB(4));
    model_capture_begin(r->model);
    rig_free(r, a);
    sealer_begin(&s, r);
    struct steps steps = {.step = finish_the_record, .arg = &s, .at = at};
    steps_mine = &steps;
    bool passed = fence_may_submit(f, 1);
    steps_mine = NULL;
    bool happened = s.joined;
    finish_the_record(&s);
    EXPECT(fence_is_unsealed(f), "the record was refused");
    EXPECT(!passed || !fence_open_is_on_time(f),
           "the submission is known to have come after the free");
    model_capture_end(r->model);
    EXPECT_ENDS(r);
    return happened;
}

TEST(a_submission_beside_a_refused_record_is_known)
{
    unsigned at = 1;
    while (submit_while_a_record_is_refused(at))
        at++;
    EXPECT(at > 3, "there are such moments");
}

/* Its fence may capture that work. */
RIG_TEST(a_record_that_is_not_waited_for_is_late, expect_arena(state))
{
    struct sealer s = {.joined = false};
    const struct fences *f = &r->pool->fences;
    rig_free(r, rig_alloc(r, MIB(4)));
    sealer_begin(&s, r);
    pool_submit(r->pool, 1); /* goes on after a while */
    finish_the_record(&s);
    EXPECT_EQ(f->ring.count, 1, "it was recorded");
    EXPECT(f->ring.at[0].late, "work may have come before it");
    EXPECT_EQ(f->late_epoch, f->ring.at[0].epoch, "which is known");
}

PLAY_TESTS
