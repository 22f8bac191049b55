/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See release.h, and pool_trim and pool_release in pool.h.
 */
#include "pool/release.h"

#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/magazine_pool.h"
#include "pool/state.h"
#include "pool/tuning.h"

/* Free memory in chunks that are away counts, since only a walk could tell how much that is. So
 * while memory is away more may go back than should. */
uint64_t release_idle_bytes(const struct pool *p)
{
    uint64_t used = p->stats.allocated_bytes + p->stats.pending_bytes;
    return p->stats.reserved_bytes > used ? p->stats.reserved_bytes - used : 0;
}

uint64_t release_idle(struct pool *p, uint64_t want_bytes, uint64_t unused_ns)
{
    struct zone *zones[] = {&p->large, &p->small};
    uint64_t back = 0;
    slab_release_empty(p);
    /* Does not give back what other threads take meanwhile: that might never end. */
    want_bytes = min_u64(want_bytes, p->stats.reserved_bytes);
    for (int i = 0; i < 2 && back < want_bytes;) {
        uint64_t got;
        struct chunk *list = chunk_seize_idle(zones[i], want_bytes - back, unused_ns, false, &got);
        uint64_t more = chunk_release(p, list);
        back += more;
        i += more == 0;
    }
    if (back)
        p->released_ns = p->backend->ops->now_ns(p->backend);
    return back;
}

void release_settle(struct pool *p, uint64_t wait_ns)
{
    struct fences *f = &p->fences;
    magazines_empty_all(p);
    fence_seal(p);
    fence_poll(p);
    uint64_t last = f->open_epoch - 1;
    if (wait_ns && last > f->complete_epoch)
        fence_wait(p, last, true, wait_ns);
    pending_retire_all(p);
    chunk_reap_ghosts(p, false);
}

/* First waits for work that the frees would wait for without the pool. Then, for a moment, behind
 * later work too. The thread also waits for the end of other threads' captures, which would forbid
 * no free without the pool (see wait_for_more in alloc.c). With one stream nothing is pending,
 * but chunks need complete fences. */
static void await_fences(struct pool *p)
{
    struct fences *f = &p->fences;
    magazines_empty_all(p);
    fence_seal_patiently(p, OOM_WAIT_NS);
    if (fence_is_running(f))
        fence_wait(p, fence_newest_waitable(f), false, OOM_WAIT_NS);
    if (fence_is_running(f))
        fence_wait(p, fence_newest_recorded(f), true, OOM_LATE_WAIT_NS);
    fence_poll(p); /* some work may have ended all the same */
    pending_retire_all(p);
    chunk_reap_ghosts(p, false);
}

static void count_flush(struct pool *p, uint64_t start_ns, uint64_t back)
{
    p->now_ns = p->backend->ops->now_ns(p->backend);
    p->stats.num_flushes++;
    p->stats.flushed_bytes += back;
    p->stats.flush_ns += p->now_ns - start_ns;
}

/* Several threads may come at once, each after a call of the driver that failed. None is told that
 * nothing came back while idle memory is on its way to the driver:
 * 1. Memory that another thread gave back between the failure and this lock shows in released_ns.
 * 2. Memory that another thread holds is busy. This thread waits for it, and it counts in
 * jobs_done.
 * 3. Memory that is neither idle nor held is live, or behind a fence that the second step waits
 *    for. A thread whose call is made again after the second step competes only with what others
 *    took. */
bool pool_release(struct pool *p, enum pool_release step)
{
    bool some = false;
    state_enter(p);
    if (!p->abandoned && p->stats.reserved_bytes + p->planned_bytes + p->released_ns) {
        uint64_t start_ns = p->now_ns = p->backend->ops->now_ns(p->backend), done = p->jobs_done;
        some = p->released_ns && start_ns - p->released_ns < RELEASED_LATELY_NS;
        if (step == POOL_RELEASE_PENDING)
            await_fences(p);
        else
            release_settle(p, 0);
        uint64_t back = release_idle(p, UINT64_MAX, UINT64_MAX);
        count_flush(p, start_ns, back);
        /* What others hold is on its way back, as a rule. Each of their turns is a few driver
         * calls. */
        job_await_all(p, start_ns);
        some = some || back || p->jobs_done != done;
    }
    state_leave(p);
    return some;
}

uint64_t pool_trim(struct pool *p, const struct pool_trim *t)
{
    uint64_t back = 0;
    state_enter(p);
    if (!p->abandoned) {
        uint64_t start_ns = p->now_ns = p->backend->ops->now_ns(p->backend);
        release_settle(p, p->stats.num_frees ? t->wait_ns : 0); /* else nothing can come */
        uint64_t idle = release_idle_bytes(p);
        if (idle > t->keep_bytes) {
            uint64_t most = t->most_bytes ? t->most_bytes : UINT64_MAX;
            back = release_idle(p, min_u64(idle - t->keep_bytes, most),
                                p->now_ns - min_u64(t->idle_ns, p->now_ns));
        }
        count_flush(p, start_ns, back);
    }
    state_leave(p);
    return back;
}

uint64_t pool_settle(struct pool *p)
{
    uint64_t mark = 0;
    state_enter(p);
    if (!p->abandoned) {
        release_settle(p, 0);
        mark = p->fences.open_epoch - 1;
    }
    state_leave(p);
    return mark;
}

/* A record that a capture refused left its frees in the open epoch, without a fence. */
bool pool_has_settled(struct pool *p, uint64_t mark)
{
    struct fences *f = &p->fences;
    bool settled = true;
    state_enter(p);
    if (!p->abandoned && p->backend->has_order && f->complete_epoch < mark) {
        if (f->refused)
            fence_seal(p);
        fence_poll(p);
        settled = f->lost || f->complete_epoch >= mark;
    }
    state_leave(p);
    return settled;
}

uint64_t pool_behind_work_bytes(struct pool *p)
{
    state_enter(p);
    uint64_t bytes =
        p->abandoned ? 0 : chunk_behind_work_bytes(&p->large) + chunk_behind_work_bytes(&p->small);
    state_leave(p);
    return bytes;
}
