/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See job.h; the numbers are those of its steps.
 */
#include "pool/job.h"

#include "pool/state.h"
#include "pool/tuning.h"

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
    uint64_t turn = j->turns[kind];
    uint64_t until_ns = p->backend->ops->now_ns(p->backend) + OOM_WAIT_NS;
    j->waiting[kind]++;
    while (j->turns[kind] == turn && state_wait_until(p, until_ns))
        continue;
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
    while (p->unlocked_jobs && state_wait_until(p, start_ns + OOM_WAIT_NS))
        continue;
}
