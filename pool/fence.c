/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See fence.h for the argument that this file keeps.
 */
#include "pool/fence.h"

#include "pool/pool.h"
#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

#include <stdatomic.h>

/* Records that the thread has under way, of all pools. Too many, as after a jump out of a signal
 * handler, make it wait for fewer of other threads. */
static __thread unsigned own_records __attribute__((tls_model("initial-exec")));

_Atomic unsigned pool_watch;
_Atomic uint64_t pool_seals;

/* pool_watch counts what sends submissions here: pools with unsealed frees, and pools that rely on
 * stream order, or may again (single_stream.c). */
static void watch_unsealed(int by)
{
    atomic_fetch_add(&pool_watch, (unsigned)by << 16);
}

void fence_publish(struct fences *f)
{
    uint64_t ready = f->lost                   ? FENCE_READY_LOST
                     : f->mode == FENCE_SINGLE ? FENCE_READY_ALL
                                               : fence_ready_epoch(f);
    atomic_store(&f->ready, ready);
}

void fence_init(struct fences *f)
{
    f->complete_epoch = FENCE_READY_LOST + 1; /* no free joins this one */
    atomic_init(&f->open_epoch, f->complete_epoch + 1);
    atomic_init(&f->run_length, FENCE_RUN);
}

void fence_mark_unsealed(struct fences *f)
{
    if (atomic_load_explicit(&f->marks, memory_order_acquire) & FENCE_UNSEALED) {
        atomic_fetch_and(&f->marks, (unsigned char)~FENCE_WORK_FOLLOWED);
        return;
    }
    /* Counted before it is marked: a free that finds another thread's mark is counted as well. */
    watch_unsealed(1);
    if (atomic_exchange(&f->marks, FENCE_UNSEALED) & FENCE_UNSEALED)
        watch_unsealed(-1);
}

uint64_t fence_join(struct pool *p, uint64_t size_bytes)
{
    struct fences *f = &p->fences;
    fence_want(f, ++f->open_frees, f->open_bytes += size_bytes);
    return fence_join_unlocked(f);
}

/* With one stream, the pool orders memory before it takes more, and stream order needs its
 * fences. */
static bool records_at_once(const struct fences *f)
{
    return atomic_load(&f->ready) == FENCE_READY_ALL || !fence_several_streams(f);
}

bool fence_is_wanted(const struct fences *f)
{
    return records_at_once(f) || atomic_load_explicit(&f->wanted, memory_order_relaxed);
}

/* No request may fail because a fence is late: none is late where memory is or was scarce. */
static uint64_t patience_bytes(const struct pool *p)
{
    const struct pool_config *c = &p->config;
    uint64_t most = min_u64(p->backend->total_bytes, c->max_reserved_bytes);
    if (c->reuse == REUSE_ORDER || c->reuse == REUSE_WAIT || !p->backend->has_order ||
        p->stats.num_alloc_retries || p->stats.reserved_bytes + p->planned_bytes > most / 2)
        return 0;
    return min_u64(FENCE_PATIENCE_BYTES, p->stats.reserved_bytes >> FENCE_PATIENCE_SHIFT);
}

static void note_stream(struct fences *f, uint64_t stream)
{
    unsigned length = atomic_load_explicit(&f->run_length, memory_order_relaxed);
    if (atomic_load_explicit(&f->run_stream, memory_order_relaxed) != stream) {
        atomic_store_explicit(&f->run_stream, stream, memory_order_relaxed);
        atomic_store_explicit(&f->run_length, 0, memory_order_relaxed);
    } else if (length < FENCE_RUN) {
        atomic_store_explicit(&f->run_length, length + 1, memory_order_relaxed);
    }
}

/* The mark is set before `sealing` and records_at_once are read for the last time: see fence_seal
 * and single_stream_enter. A record may begin after the marks were read, put marks back, and end
 * before `sealing` was read. So refusals are read first and last. */
bool fence_may_submit(struct fences *f, uint64_t stream)
{
    unsigned refusals = atomic_load(&f->refusals), marks = atomic_load(&f->marks);
    if (marks & FENCE_UNSEALED) {
        if (!(marks & FENCE_WORK_FOLLOWED)) {
            note_stream(f, stream);
            if (fence_is_wanted(f))
                return false;
            atomic_fetch_or(&f->marks, FENCE_WORK_FOLLOWED);
        }
        if (records_at_once(f))
            return false;
    }
    return !atomic_load(&f->sealing) && atomic_load(&f->refusals) == refusals;
}

uint64_t fence_ready_epoch(const struct fences *f)
{
    return f->complete_epoch > f->ordered_epoch ? f->complete_epoch : f->ordered_epoch;
}

void fence_lose(struct pool *p)
{
    p->fences.lost = true;
    fence_publish(&p->fences);
    p->stats.num_backend_failures++;
}

static void collect_done(struct fences *f)
{
    ring_collect(&f->ring, f->complete_epoch,
                 f->mode == FENCE_SINGLE ? RING_ALL : f->ordered_epoch);
}

static bool take_spare_event(struct ring *r, uint64_t *event)
{
    if (!r->spares)
        return false;
    *event = r->spare[--r->spares];
    return true;
}

/* If the driver makes no event, the pool goes on with those that it has, as if the ring were full.
 * It is no sign of a broken context: the driver may have no host memory for the event. A record or
 * a query tells whether the context is broken. */
static bool take_event(struct pool *p, uint64_t *event)
{
    struct fences *f = &p->fences;
    if (take_spare_event(&f->ring, event))
        return true;
    state_unlock(p);
    int code = p->backend->ops->fence_create(p->backend, event);
    state_lock(p);
    if (code == 0)
        return true;
    p->stats.num_backend_failures++;
    collect_done(f);
    if (!f->ring.spares)
        ring_thin(&f->ring);
    return take_spare_event(&f->ring, event);
}

/* No fence can be had: the frees wait for a later one, as when the ring is full. The epoch counts
 * as late, because work may follow: the pool may query its fence, but waits for it only after
 * another free. */
static void defer(struct fences *f)
{
    f->refused = false;
    if (fence_is_unsealed(f))
        atomic_fetch_or(&f->marks, FENCE_WORK_FOLLOWED);
}

/* A capture is open: these frees belong to a later fence, as if this record had not been tried. But
 * work may have been submitted meanwhile. To be called before the record counts as over: see
 * fence_may_submit. */
static void reopen_epoch(struct fences *f, bool late)
{
    unsigned char marks = FENCE_UNSEALED | (late ? FENCE_WORK_FOLLOWED : 0);
    if (atomic_fetch_or(&f->marks, marks) & FENCE_UNSEALED)
        watch_unsealed(-1);
    atomic_fetch_add(&f->refusals, 1);
}

static void end_record(struct fences *f)
{
    own_records--;
    if (atomic_fetch_sub(&f->sealing, 1) == 1)
        f->sealing_late = false;
}

void fence_seal(struct pool *p)
{
    struct fences *f = &p->fences;
    if (!fence_is_unsealed(f) || f->lost)
        return;
    if (f->ring.count + f->sealing >= RING_MAX - 1) {
        collect_done(f);
        if (f->ring.count + f->sealing >= RING_MAX - 1)
            ring_thin(&f->ring);
        if (f->ring.count + f->sealing >= RING_MAX - 1) {
            defer(f);
            return;
        }
    }
    own_records++;
    atomic_fetch_add(&f->sealing,
                     1); /* from here on a submission waits, also while the event is made */
    uint64_t event;
    if (!take_event(p, &event)) {
        defer(f);
        end_record(f);
        return;
    }
    if (!fence_is_unsealed(f)) { /* another thread was faster */
        ring_put_spare(&f->ring, event);
        end_record(f);
        return;
    }
    uint64_t epoch = f->open_epoch;
    /* before the epoch, see fence.h */
    bool late = atomic_exchange(&f->marks, 0) & FENCE_WORK_FOLLOWED;
    atomic_store(&f->open_epoch, epoch + 1);
    atomic_fetch_add(&pool_seals, 1); /* before pool_watch tells of the frees no more */
    if (f->mode != FENCE_SINGLE) {
        atomic_store_explicit(&f->wanted, false, memory_order_relaxed);
        atomic_store_explicit(&f->patience_bytes, patience_bytes(p), memory_order_relaxed);
    }
    f->open_frees = 0;
    f->open_bytes = 0;
    state_unlock(p);
    enum fence_record r = p->backend->ops->fence_record(p->backend, event);
    state_lock(p);
    late = late || f->sealing_late;
    f->barred = r == FENCE_BARRED;
    /* A lost pool's frees wait for nothing. */
    f->refused = (r == FENCE_REFUSED || f->barred) && !f->lost;
    if (f->refused)
        reopen_epoch(f, late);
    end_record(f);
    if (r == FENCE_RECORDED) {
        p->stats.num_fences++;
        ring_insert(&f->ring, epoch, event, late);
        if (late)
            f->late_epoch = max_u64(f->late_epoch, epoch);
        watch_unsealed(-1);
        return;
    }
    ring_put_spare(&f->ring, event);
    if (r == FENCE_FAILED)
        fence_lose(p);
    if (!f->refused)
        watch_unsealed(-1);
}

uint64_t fence_seal_anew(struct pool *p)
{
    struct fences *f = &p->fences;
    uint64_t epoch = f->open_epoch;
    if (f->lost)
        return epoch;
    watch_unsealed(1);
    if (atomic_fetch_or(&f->marks, FENCE_UNSEALED | FENCE_WORK_FOLLOWED) & FENCE_UNSEALED)
        watch_unsealed(-1);
    fence_seal(p);
    return epoch;
}

bool fence_await_records(struct pool *p)
{
    const struct fences *f = &p->fences;
    uint64_t start_ns = f->sealing ? p->backend->ops->now_ns(p->backend) : 0;
    for (unsigned turn = 0;
         f->sealing > own_records && p->backend->ops->now_ns(p->backend) - start_ns < OOM_WAIT_NS;
         turn++) {
        state_unlock(p);
        spin_pause(turn);
        state_lock(p);
    }
    return !f->sealing;
}

/* The refused record may be another thread's, and another capture may begin before this thread
 * records. */
bool fence_seal_patiently(struct pool *p, uint64_t timeout_ns)
{
    struct fences *f = &p->fences;
    const struct backend_ops *ops = p->backend->ops;
    uint64_t start_ns = ops->now_ns(p->backend), waited_ns = 0;
    for (bool may = true; may && waited_ns < timeout_ns;
         waited_ns = ops->now_ns(p->backend) - start_ns) {
        fence_seal(p);
        fence_await_records(p);
        if (!f->refused || !fence_is_unsealed(f) || f->lost)
            return true;
        if (f->barred)
            return false;
        state_unlock(p);
        may = ops->fence_await(p->backend, timeout_ns - waited_ns);
        state_lock(p);
    }
    return false;
}

void fence_submit(struct pool *p)
{
    struct fences *f = &p->fences;
    if (fence_is_unsealed(f) && fence_is_wanted(f))
        fence_seal(p);
    for (unsigned turn = 0; f->sealing && turn < FENCE_SUBMIT_TURNS; turn++) {
        state_unlock(p);
        spin_pause(turn);
        state_lock(p);
    }
    if (f->sealing)
        f->sealing_late = true;
    if (fence_is_unsealed(f))
        atomic_fetch_or(&f->marks, FENCE_WORK_FOLLOWED);
}

static enum fence_state query(struct pool *p, unsigned at)
{
    struct fences *f = &p->fences;
    struct fence asked = ring_pin(&f->ring, at);
    p->stats.num_fence_queries++;
    state_unlock(p);
    enum fence_state s = p->backend->ops->fence_query(p->backend, asked.event);
    state_lock(p);
    ring_unpin(&f->ring, at, asked.event);
    if (s == FENCE_DONE) {
        f->complete_epoch = max_u64(f->complete_epoch, asked.epoch);
        fence_publish(f);
    } else if (s == FENCE_LOST)
        fence_lose(p);
    return s;
}

bool fence_newest_is_done(struct pool *p, uint64_t epoch)
{
    const struct ring *r = &p->fences.ring;
    return r->count && r->at[r->count - 1].epoch >= epoch && query(p, r->count - 1) == FENCE_DONE;
}

bool fence_poll(struct pool *p)
{
    struct fences *f = &p->fences;
    uint64_t before = f->complete_epoch;
    if (!f->ring.count || f->lost)
        return false;
    /* Epochs finish in turn. So the thread asks for the oldest. If that is done it asks for the
     * newest, and then it halves the rest. */
    uint64_t busy = UINT64_MAX;
    for (unsigned asked = 0; !f->lost; asked++) {
        unsigned lo = ring_find(&f->ring, f->complete_epoch + 1), hi = ring_find(&f->ring, busy);
        if (lo >= hi)
            break;
        unsigned at = asked == 0 ? lo : asked == 1 ? hi - 1 : lo + (hi - lo) / 2;
        uint64_t epoch = f->ring.at[at].epoch;
        if (query(p, at) == FENCE_BUSY) {
            if (at == lo)
                break;
            busy = epoch;
        }
    }
    if (f->complete_epoch == before)
        return false;
    collect_done(f);
    return true;
}

bool fence_is_idle(struct pool *p)
{
    struct fences *f = &p->fences;
    fence_seal(p);
    if (f->lost || fence_is_unsealed(f))
        return false;
    uint64_t epoch = fence_seal_anew(p);
    fence_poll(p);
    return f->complete_epoch >= epoch;
}

bool fence_is_running(const struct fences *f)
{
    return f->ring.count && f->ring.at[f->ring.count - 1].epoch > f->complete_epoch;
}

uint64_t fence_newest_waitable(const struct fences *f)
{
    if (fence_open_is_on_time(f))
        return f->open_epoch;
    for (unsigned at = f->ring.count; at > 0; at--)
        if (!f->ring.at[at - 1].late)
            return f->ring.at[at - 1].epoch;
    return 0;
}

uint64_t fence_newest_recorded(const struct fences *f)
{
    return f->ring.count ? f->ring.at[f->ring.count - 1].epoch : 0;
}

bool fence_order(struct pool *p, uint64_t epoch, bool late_too)
{
    struct fences *f = &p->fences;
    if (epoch >= f->open_epoch)
        fence_seal(p);
    unsigned at = ring_find_waitable(&f->ring, epoch, late_too);
    if (at == f->ring.count || f->lost || !p->backend->has_order ||
        f->ring.at[at].epoch <= f->ordered_epoch)
        return false;
    struct fence taken = ring_pin(&f->ring, at);
    p->stats.num_fence_orders++;
    state_unlock(p);
    int code = p->backend->ops->fence_order(p->backend, taken.event);
    state_lock(p);
    ring_unpin(&f->ring, at, taken.event);
    if (code || taken.epoch <= f->ordered_epoch)
        return false;
    f->ordered_epoch = taken.epoch;
    fence_publish(f);
    collect_done(f);
    return true;
}

bool fence_wait(struct pool *p, uint64_t epoch, bool late_too, uint64_t timeout_ns)
{
    struct fences *f = &p->fences;
    if (epoch >= f->open_epoch)
        fence_seal(p);
    unsigned at = ring_find_waitable(&f->ring, epoch, late_too);
    if (at == f->ring.count || f->lost)
        return false;
    struct fence taken = ring_pin(&f->ring, at);
    p->stats.num_fence_waits++;
    state_unlock(p);
    int code = p->backend->ops->fence_wait(p->backend, taken.event, timeout_ns);
    state_lock(p);
    ring_unpin(&f->ring, at, taken.event);
    if (code || taken.epoch <= f->complete_epoch)
        return false;
    f->complete_epoch = taken.epoch;
    fence_publish(f);
    collect_done(f);
    return true;
}

void fence_clear_marks(struct fences *f)
{
    if (atomic_exchange(&f->marks, 0) & FENCE_UNSEALED)
        watch_unsealed(-1);
}

void fence_finish(struct pool *p)
{
    struct fences *f = &p->fences;
    fence_clear_marks(f);
    f->lost = true;
    fence_publish(f);
    while (f->ring.count || f->ring.spares) {
        uint64_t event =
            f->ring.count ? f->ring.at[--f->ring.count].event : f->ring.spare[--f->ring.spares];
        state_unlock(p);
        p->backend->ops->fence_destroy(p->backend, event);
        state_lock(p);
    }
}

/* What came late to the abandoned pool (an event under record, a mark) was of the old context. */
void fence_restart(struct fences *f)
{
    fence_clear_marks(f);
    f->ring.count = f->ring.spares = 0;
    f->complete_epoch = f->ordered_epoch = atomic_fetch_add(&f->open_epoch, 1);
    f->late_epoch = f->open_bytes = f->open_frees = 0;
    atomic_store(&f->wanted, false);
    atomic_store(&f->patience_bytes, 0);
    atomic_store(&f->run_length, FENCE_RUN);
    f->sealing_late = f->refused = f->lost = false;
}
