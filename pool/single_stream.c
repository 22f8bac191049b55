/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See single_stream.h.
 */
#include "pool/single_stream.h"

#include "pool/magazine_pool.h"
#include "pool/pool.h"
#include "pool/state.h"
#include "pool/tuning.h"

_Atomic uint64_t pool_single_stream = POOL_STREAM_NONE;

/* Counts the pool in pool_watch, or no more. */
static void watch(struct fences *f, bool watches)
{
    if (f->watches != watches)
        atomic_fetch_add(&pool_watch, watches ? 1u : -1u);
    f->watches = watches;
}

void single_stream_init(struct fences *f, bool single_stream)
{
#ifdef POOL_IGNORES_FENCES
    single_stream =
        true; /* for the tests of the tests: the hazard checker and the canary must notice */
#endif
    f->mode = single_stream ? FENCE_SINGLE : FENCE_MULTI;
    watch(f, single_stream);
    if (single_stream)
        atomic_store(&pool_single_stream, POOL_STREAM_ANY);
    fence_publish(f);
}

/* Its address is that of the calling thread. */
static __thread char this_thread __attribute__((tls_model("initial-exec")));

/* Step 3 of single_stream.h. False: the mode has ended since the call. */
static bool is_left_to_caller(struct pool *p)
{
    struct fences *f = &p->fences;
    const struct backend_ops *ops = p->backend->ops;
    uint64_t ends = f->mode_ends, start_ns = ops->now_ns(p->backend);
    for (unsigned look = 0;
         f->mode == FENCE_LEAVING && f->mode_ends == ends && f->leaver != &this_thread &&
         ops->now_ns(p->backend) - start_ns < OOM_WAIT_NS;
         look++)
        state_pause(p, look);
    return f->mode != FENCE_MULTI && f->mode_ends == ends;
}

/* Orders later work behind all frees up to that epoch. True: the GPU or the host had to wait. */
static bool order_all(struct pool *p, uint64_t last)
{
    struct fences *f = &p->fences;
    for (int left = LEAVE_TRIES; f->open_epoch <= last && !f->lost && left > 0; left--)
        fence_seal(p);
    /* Of epochs that count. Any later fence covers the frees of one that does not come. */
    if (!fence_await_records(p) && fence_newest_recorded(f) < last)
        fence_seal_anew(p);
    if (last <= fence_ready_epoch(f) || fence_newest_is_done(p, last))
        return false;
    if (!fence_order(p, last, false) && !fence_order(p, last, true))
        fence_wait(p, last, true, LEAVE_TIMEOUT_NS);
    return true;
}

static void end_mode(struct fences *f)
{
    f->mode = FENCE_MULTI;
    f->mode_ends++;
    fence_publish(f);
    atomic_store(&pool_single_stream, POOL_STREAM_NONE);
}

bool single_stream_leave(struct pool *p)
{
    struct fences *f = &p->fences;
#ifdef POOL_IGNORES_FENCES
    return false;
#endif
    if (f->mode == FENCE_MULTI || !is_left_to_caller(p))
        return false;
    /* From here on frees wait for fences. Memory in the bins by now was freed in epochs up to this
     * one, and so was everything handed out of them. The same holds for magazines. This thread
     * takes the lock of each magazine. After that, a thread that saw one stream and took something
     * out has left the magazine, and this thread sees the mark of its free. */
    uint64_t ends = f->mode_ends;
    f->mode = FENCE_LEAVING;
    f->leaver = &this_thread;
    atomic_store(&f->wanted, true); /* the stream's work that comes meanwhile still records first */
    fence_publish(f);
    magazines_pass_all(p);
    uint64_t last = fence_is_unsealed(f) ? f->open_epoch : f->open_epoch - 1;
    bool waited = order_all(p, last);
    if (f->mode_ends != ends)
        return waited;
    /* Memory in the bins is no longer safe by itself, and cannot be made so. */
    if (fence_ready_epoch(f) < last)
        fence_lose(p);
    end_mode(f);
    state_job_done(p);
    return waited;
}

/* Memory in the queue was freed before the mark or is the stream's own: all of it is ready. A
 * request retires it before it does anything else (alloc.c: reuse).
 *
 * The order is that of tests/model/stream.pml. The pool hands nothing out before it has looked for
 * the breach. The thread that noted the breach may have seen no single stream, and in that case it
 * submits without leaving one. A thread that sees one comes to leave it, and waits for the lock.
 * When the mode ends, later work is ordered behind what was handed out meanwhile. That must need no
 * late fence. */
bool single_stream_enter(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach)
{
    struct fences *f = &p->fences;
    if (f->mode != FENCE_MULTI || f->lost || !f->watches || f->complete_epoch < mark ||
        f->late_epoch > f->complete_epoch || atomic_load(&f->sealing))
        return false;
    /* Another thread may submit to the stream without the lock. If it found that nothing is
     * recorded at once, it has set the mark by now. If it sets the mark from now on, it finds a
     * record under way, or that records are made at once, and comes for the lock. */
    atomic_fetch_add(&f->sealing, 1);
    bool enters = atomic_load(&f->marks) != (FENCE_UNSEALED | FENCE_WORK_FOLLOWED);
    if (enters) {
        atomic_store(&pool_single_stream, stream);
        enters = !atomic_load(breach);
        if (!enters)
            atomic_store(&pool_single_stream, POOL_STREAM_NONE);
    }
    if (enters) {
        f->mode = FENCE_SINGLE;
        fence_publish(f);
        pending_retire(p);
        p->stats.num_single_streams++;
    }
    atomic_fetch_sub(&f->sealing, 1);
    return enters;
}

void single_stream_unwatch(struct pool *p)
{
    watch(&p->fences, false);
}

void single_stream_finish(struct fences *f)
{
    if (f->mode != FENCE_MULTI)
        atomic_store(&pool_single_stream, POOL_STREAM_NONE);
    watch(f, false);
    f->mode = FENCE_MULTI;
    f->mode_ends++;
}
