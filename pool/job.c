/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See job.h; the numbers are those of its steps.
 */
#include "pool/job.h"

#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

/* Until *count is 0. Nobody wakes the caller: step 3. */
static void await_none(struct pool *p, const unsigned *count, uint64_t start_ns)
{
    for (unsigned turn = 0; *count && p->backend->ops->now_ns(p->backend) - start_ns < OOM_WAIT_NS;
         turn++) {
        state_unlock(p);
        spin_pause(turn);
        state_lock(p);
    }
}

void job_begin(struct pool *p)
{
    p->unlocked_jobs++;
    if (p->walks)
        await_none(p, &p->walks, p->backend->ops->now_ns(p->backend));
    p->running_jobs++;
}

void job_end(struct pool *p)
{
    p->running_jobs--;
    p->unlocked_jobs--;
}

void job_begin_walk(struct pool *p)
{
    p->unlocked_jobs++;
    p->walks++;
    await_none(p, &p->running_jobs, p->backend->ops->now_ns(p->backend));
}

void job_await_all(struct pool *p, uint64_t start_ns)
{
    await_none(p, &p->unlocked_jobs, start_ns);
}

void job_end_walk(struct pool *p)
{
    p->walks--;
    p->unlocked_jobs--;
}
