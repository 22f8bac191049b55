/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See job.h; the numbers are those of its steps.
 */
#include "pool/job.h"

#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

static uint64_t now_ns(const struct pool *p)
{
    return p->backend->ops->now_ns(p->backend);
}

/* Step 7. */
static void pause_unlocked(struct pool *p, unsigned look)
{
    state_unlock(p);
    spin_pause_longer(look);
    state_lock(p);
}

/* Step 2. */
static void admit(struct jobs *j, enum job_kind kind)
{
    j->running[kind] += j->waiting[kind];
    j->waiting[kind] = 0;
    j->turns[kind]++;
}

static void enter_turn(struct pool *p, enum job_kind kind)
{
    struct jobs *j = &p->jobs;
    enum job_kind other = !kind;
    p->unlocked_jobs++;
    if (likely(!j->running[other] && !j->waiting[other])) {
        j->running[kind]++;
        return;
    }
    uint64_t turn = j->turns[kind], start_ns = now_ns(p);
    j->waiting[kind]++;
    for (unsigned look = 0; j->turns[kind] == turn && now_ns(p) - start_ns < OOM_WAIT_NS; look++)
        pause_unlocked(p, look);
    if (j->turns[kind] == turn) { /* step 4 */
        j->waiting[kind]--;
        j->running[kind]++;
    }
}

/* Step 3. */
static void leave_turn(struct pool *p, enum job_kind kind)
{
    struct jobs *j = &p->jobs;
    enum job_kind other = !kind;
    p->unlocked_jobs--;
    if (--j->running[kind] > 0)
        return;
    if (j->waiting[other])
        admit(j, other);
    else if (j->waiting[kind] && !j->running[other])
        admit(j, kind);
}

void job_begin(struct pool *p)
{
    enter_turn(p, JOB_OF_MEMORY);
}

void job_end(struct pool *p)
{
    leave_turn(p, JOB_OF_MEMORY);
}

void job_begin_walk(struct pool *p)
{
    enter_turn(p, JOB_WALK);
}

void job_end_walk(struct pool *p)
{
    leave_turn(p, JOB_WALK);
}

void job_await_all(struct pool *p, uint64_t start_ns)
{
    for (unsigned look = 0; p->unlocked_jobs && now_ns(p) - start_ns < OOM_WAIT_NS; look++)
        pause_unlocked(p, look);
}

bool job_await_any(struct pool *p)
{
    uint64_t start_ns = now_ns(p), done = p->jobs_done;
    for (unsigned look = 0; p->unlocked_jobs && p->jobs_done == done; look++) {
        if (now_ns(p) - start_ns >= OOM_WAIT_NS)
            return false;
        pause_unlocked(p, look);
    }
    return true;
}
