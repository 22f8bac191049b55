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

/* What the thread is in, by pool: more than one job if signal handlers come (step 8). */
static __thread struct own {
    const struct pool *pool;
    unsigned jobs[JOB_KINDS];
} own[4] __attribute__((tls_model("initial-exec")));

/* NULL: there is no place. What has none counts as another thread's. */
static struct own *own_place(const struct pool *p)
{
    struct own *place = NULL;
    for (struct own *o = own; o < own + sizeof own / sizeof own[0]; o++) {
        if (o->pool == p)
            return o;
        if (!o->jobs[JOB_OF_MEMORY] && !o->jobs[JOB_WALK])
            place = o;
    }
    if (place)
        place->pool = p;
    return place;
}

static unsigned count_own(const struct pool *p, enum job_kind kind)
{
    const struct own *o = own_place(p);
    return o ? o->jobs[kind] : 0;
}

static bool others_are_in(const struct pool *p)
{
    return p->unlocked_jobs > count_own(p, JOB_OF_MEMORY) + count_own(p, JOB_WALK);
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
    struct own *o = own_place(p);
    p->unlocked_jobs++;
    if (o)
        o->jobs[kind]++;
    if (likely(!j->running[other] && !j->waiting[other])) {
        j->running[kind]++;
        return;
    }
    uint64_t admissions = j->admissions[kind], start_ns = now_ns(p);
    j->waiting[kind]++;
    for (unsigned look = 0; j->admissions[kind] == admissions && !count_own(p, other) &&
                            now_ns(p) - start_ns < OOM_WAIT_NS;
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
    struct own *o = own_place(p);
    p->unlocked_jobs--;
    if (o && o->jobs[kind])
        o->jobs[kind]--;
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

static bool await_others(struct pool *p, uint64_t start_ns, uint64_t timeout_ns)
{
    for (unsigned look = 0; others_are_in(p) && now_ns(p) - start_ns < timeout_ns; look++)
        state_pause(p, look);
    return !p->unlocked_jobs;
}

void job_await_all(struct pool *p, uint64_t start_ns)
{
    await_others(p, start_ns, OOM_WAIT_NS);
}

bool job_await_end(struct pool *p)
{
    return !p->unlocked_jobs || await_others(p, now_ns(p), ABANDON_WAIT_NS);
}

bool job_any_of_memory(const struct pool *p)
{
    const struct jobs *j = &p->jobs;
    return j->running[JOB_OF_MEMORY] + j->waiting[JOB_OF_MEMORY] > count_own(p, JOB_OF_MEMORY);
}

bool job_await_any(struct pool *p, uint64_t until_ns)
{
    uint64_t done = p->jobs_done;
    for (unsigned look = 0; job_any_of_memory(p) && p->jobs_done == done; look++) {
        if (now_ns(p) >= until_ns)
            return false;
        state_pause(p, look);
    }
    return true;
}
