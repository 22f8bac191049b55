/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See job.h; the numbers are those of its steps.
 */
#include "pool/job.h"

#include "pool/state.h"
#include "pool/tuning.h"

static uint64_t now_ns(const struct pool *p)
{
    return p->backend->ops->now_ns(p->backend);
}

/* Step 2. */
static void admit(struct jobs *j, enum job_kind kind)
{
    j->running[kind] += j->waiting[kind];
    j->waiting[kind] = 0;
    j->admissions[kind]++;
}

static void begin_as(struct pool *p, enum job_kind kind)
{
    struct jobs *j = &p->jobs;
    enum job_kind other = !kind;
    p->unlocked_jobs++;
    if (likely(!j->running[other] && !j->waiting[other])) {
        j->running[kind]++;
        return;
    }
    uint64_t admissions = j->admissions[kind], start_ns = now_ns(p);
    j->waiting[kind]++;
    for (unsigned look = 0; j->admissions[kind] == admissions && now_ns(p) - start_ns < OOM_WAIT_NS;
         look++)
        state_pause(p, look);
    if (j->admissions[kind] == admissions) { /* step 4 */
        j->waiting[kind]--;
        j->running[kind]++;
    }
}

/* Step 3. */
static void end_as(struct pool *p, enum job_kind kind)
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
    begin_as(p, JOB_OF_MEMORY);
}

void job_end(struct pool *p)
{
    end_as(p, JOB_OF_MEMORY);
}

void job_begin_walk(struct pool *p)
{
    begin_as(p, JOB_WALK);
}

void job_end_walk(struct pool *p)
{
    end_as(p, JOB_WALK);
}

void job_await_all(struct pool *p, uint64_t start_ns)
{
    for (unsigned look = 0; p->unlocked_jobs && now_ns(p) - start_ns < OOM_WAIT_NS; look++)
        state_pause(p, look);
}

static bool any_of_memory(const struct jobs *j)
{
    return j->running[JOB_OF_MEMORY] || j->waiting[JOB_OF_MEMORY];
}

bool job_await_any(struct pool *p)
{
    uint64_t start_ns = now_ns(p), done = p->jobs_done;
    for (unsigned look = 0; any_of_memory(&p->jobs) && p->jobs_done == done; look++) {
        if (now_ns(p) - start_ns >= OOM_WAIT_NS)
            return false;
        state_pause(p, look);
    }
    return true;
}
