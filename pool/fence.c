/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See fence.h for the argument that this file keeps.
 */
#include "pool/fence.h"

#include "pool/magazine.h"
#include "pool/pool.h"
#include "pool/state.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* How often a submission looks whether a record under way (about 1 us) is over before it goes on. */
#define SUBMIT_PATIENCE 2000
/* Fences that nobody may wait for any more are kept only to learn what is done; a few suffice. */
#define KEEP_PASSED 8
/* So much, or this part of what is reserved, may be freed before its fence is wanted. */
#define PATIENCE_BYTES (UINT64_C(4) << 20)
#define PATIENCE_SHIFT 3
/* Where the driver cannot order and the host has to (drivers before CUDA 12.5). */
#define LEAVE_TIMEOUT_NS (UINT64_C(60) * 1000 * 1000 * 1000)

_Atomic unsigned pool_watch;
_Atomic uint64_t pool_seals;
_Atomic uint64_t pool_sole = POOL_STREAM_NONE;

/* pool_watch counts what makes submissions look here: pools that rely on stream order, or may again,
 * and pools with unsealed frees. */
static void watch_streams(int by)
{
    atomic_fetch_add(&pool_watch, (unsigned)by);
}

static void watch_unsealed(int by)
{
    atomic_fetch_add(&pool_watch, (unsigned)by << 16);
}

/* Once a context is lost nothing in a magazine may be handed out either. */
static void publish(struct fences *f)
{
    uint64_t ready = f->lost ? FENCE_READY_LOST : f->mode == FENCE_SINGLE ? FENCE_READY_ALL : fence_ready_epoch(f);
    atomic_store(&f->ready, ready);
}

void fence_init(struct fences *f, bool single_stream)
{
    f->complete_epoch = FENCE_READY_LOST + 1; /* no free joins this one */
    atomic_init(&f->open_epoch, f->complete_epoch + 1);
#ifdef POOL_IGNORES_FENCES
    single_stream = true; /* for the tests of the tests: the hazard checker and the canary must notice */
#endif
    f->mode = single_stream ? FENCE_SINGLE : FENCE_MULTI;
    atomic_init(&f->run_length, FENCE_RUN);
    if (single_stream) {
        f->watches = true;
        watch_streams(1);
        atomic_store(&pool_sole, POOL_STREAM_ANY);
    }
    publish(f);
}

void fence_arm(struct fences *f)
{
    if (atomic_load_explicit(&f->marks, memory_order_acquire) & FENCE_UNSEALED) {
        atomic_fetch_and(&f->marks, (unsigned char)~FENCE_LATE);
        return;
    }
    /* Counted before it is marked: a free that finds the mark of another thread's is told of as well. */
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

/* Where one stream follows, memory is ordered before any is spent, and stream order needs its fences. */
static bool is_eager(const struct fences *f)
{
    return atomic_load(&f->ready) == FENCE_READY_ALL || !fence_several_streams(f);
}

bool fence_is_wanted(const struct fences *f)
{
    return is_eager(f) || atomic_load_explicit(&f->wanted, memory_order_relaxed);
}

/* Nobody may be refused memory because a fence is late: none is where memory is or was scarce. */
static uint64_t patience_bytes(const struct pool *p)
{
    const struct pool_config *c = p->config;
    uint64_t most = min_u64(p->backend->total_bytes, c->max_reserved_bytes);
    if (c->reuse == REUSE_ORDER || c->reuse == REUSE_WAIT || !p->backend->has_order ||
        p->stats.num_alloc_retries || p->stats.reserved_bytes + p->planned_bytes > most / 2)
        return 0;
    return min_u64(PATIENCE_BYTES, p->stats.reserved_bytes >> PATIENCE_SHIFT);
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

/* The mark is set before sealing and eagerness are looked at for good: see fence_seal and fence_enter_single. */
bool fence_pass(struct fences *f, uint64_t stream)
{
    unsigned marks = atomic_load(&f->marks);
    if (marks & FENCE_UNSEALED) {
        if (!(marks & FENCE_LATE)) {
            note_stream(f, stream);
            if (fence_is_wanted(f))
                return false;
            atomic_fetch_or(&f->marks, FENCE_LATE);
        }
        if (is_eager(f))
            return false;
    }
    return !atomic_load(&f->sealing);
}

uint64_t fence_ready_epoch(const struct fences *f)
{
    return f->complete_epoch > f->ordered_epoch ? f->complete_epoch : f->ordered_epoch;
}

static void drop(struct fences *f, unsigned at)
{
    f->spare[f->spares++] = f->ring[at].event;
    f->count--;
    memmove(&f->ring[at], &f->ring[at + 1], (f->count - at) * sizeof f->ring[0]);
}

/* Index of the oldest fence of that epoch or a later one; count: none. */
static unsigned find_from(const struct fences *f, uint64_t epoch)
{
    unsigned lo = 0, hi = f->count;
    while (lo < hi) {
        unsigned at = lo + (hi - lo) / 2;
        if (f->ring[at].epoch < epoch)
            lo = at + 1;
        else
            hi = at;
    }
    return lo;
}

/* Events of fences that are known done, or passed by a newer one, can be recorded again; the passed ones
 * are taken many at a time. A pinned one stays until its user is back, and so do the oldest and the newest
 * of the passed. */
static void collect(struct fences *f)
{
    bool single = f->mode == FENCE_SINGLE;
    unsigned old = find_from(f, f->complete_epoch + 1);
    unsigned passed = single ? f->count : find_from(f, f->ordered_epoch);
    unsigned end = passed > old ? passed : old, kept = 0, extra = end - old;
    if (!old && extra <= 2 * KEEP_PASSED)
        return;
    if (extra <= 2 * KEEP_PASSED)
        extra = 0;
    for (unsigned i = 0; i < end; i++) {
        struct fence e = f->ring[i];
        bool spare = extra > KEEP_PASSED && kept > 0 && i + 1 < f->count;
        if (e.pins == 0 && (i < old || spare)) {
            f->spare[f->spares++] = e.event;
            extra -= i >= old;
        } else {
            f->ring[kept++] = e;
        }
    }
    memmove(&f->ring[kept], &f->ring[end], (f->count - end) * sizeof f->ring[0]);
    f->count -= end - kept;
}

static void insert(struct fences *f, uint64_t epoch, uint64_t event, bool late)
{
    unsigned at = f->count;
    while (at > 0 && f->ring[at - 1].epoch > epoch)
        at--;
    if (unlikely(at < f->count))
        memmove(&f->ring[at + 1], &f->ring[at], (f->count - at) * sizeof f->ring[0]);
    f->ring[at] = (struct fence){.epoch = epoch, .event = event, .late = late};
    f->count++;
    if (late)
        f->late_epoch = max_u64(f->late_epoch, epoch);
}

/* The ring is full of fences that are not done: every second one goes, but for the newest. What it
 * covered waits for its successor, which was recorded at a later free: natively that free would have
 * returned only when all of it was done, so that nothing is waited for that the program, having come
 * so far, could be holding up. A fence that may be waited for leaves none behind that may not. */
static void thin(struct fences *f)
{
    for (unsigned i = 0; i + 1 < f->count; i++)
        if (f->ring[i].pins == 0 && (f->ring[i].late || !f->ring[i + 1].late))
            drop(f, i); /* the successor is at i now, and stays */
}

/* A context that reports an error for ever: nothing may be handed out again. */
static void lose(struct pool *p)
{
    p->fences.lost = true;
    publish(&p->fences);
    p->stats.num_backend_failures++;
}

static bool take_event(struct pool *p, uint64_t *event)
{
    struct fences *f = &p->fences;
    if (f->spares) {
        *event = f->spare[--f->spares];
        return true;
    }
    state_unlock(p);
    int code = p->backend->ops->fence_create(p->backend, event);
    state_lock(p);
    return code == 0;
}

void fence_seal(struct pool *p)
{
    struct fences *f = &p->fences;
    if (!fence_is_unsealed(f) || f->lost)
        return;
    if (f->count + f->sealing >= FENCE_MAX - 1) {
        collect(f);
        if (f->count + f->sealing >= FENCE_MAX - 1)
            thin(f);
        if (f->count + f->sealing >= FENCE_MAX - 1) {
            atomic_fetch_or(&f->marks, FENCE_LATE);
            return;
        }
    }
    atomic_fetch_add(&f->sealing, 1); /* from here on a submission waits, also while the event is being created */
    uint64_t event;
    if (!take_event(p, &event)) {
        atomic_fetch_sub(&f->sealing, 1);
        lose(p);
        return;
    }
    if (!fence_is_unsealed(f)) { /* somebody else was faster */
        f->spare[f->spares++] = event;
        atomic_fetch_sub(&f->sealing, 1);
        return;
    }
    uint64_t epoch = f->open_epoch;
    bool late = atomic_exchange(&f->marks, 0) & FENCE_LATE; /* before the epoch, see fence.h */
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
    if (atomic_fetch_sub(&f->sealing, 1) == 1)
        f->sealing_late = false;
    if (r == FENCE_RECORDED) {
        p->stats.num_fences++;
        insert(f, epoch, event, late);
        watch_unsealed(-1);
        return;
    }
    f->spare[f->spares++] = event;
    if (r == FENCE_FAILED) {
        lose(p);
        watch_unsealed(-1);
        return;
    }
    /* A capture is open: these frees belong to a later fence, and what is submitted until then comes
     * between them and it. */
    if (atomic_fetch_or(&f->marks, FENCE_UNSEALED | FENCE_LATE) & FENCE_UNSEALED)
        watch_unsealed(-1);
}

void fence_submit(struct pool *p)
{
    struct fences *f = &p->fences;
    if (fence_is_unsealed(f) && fence_is_wanted(f))
        fence_seal(p);
    for (int patience = SUBMIT_PATIENCE; f->sealing && patience > 0; patience--) {
        state_unlock(p);
        sched_yield();
        state_lock(p);
    }
    if (f->sealing)
        f->sealing_late = true;
    if (fence_is_unsealed(f))
        atomic_fetch_or(&f->marks, FENCE_LATE);
}

/* Pinned at `at`; meanwhile others may have come and gone, or all. */
static void unpin(struct fences *f, unsigned at, uint64_t event)
{
    for (unsigned left = f->count; left > 0; left--) {
        at = at < f->count ? at : f->count - 1;
        if (f->ring[at].event == event) {
            f->ring[at].pins--;
            return;
        }
        at = at ? at - 1 : f->count - 1;
    }
}

static enum fence_state query(struct pool *p, unsigned at)
{
    struct fences *f = &p->fences;
    struct fence asked = f->ring[at];
    f->ring[at].pins++;
    p->stats.num_fence_queries++;
    state_unlock(p);
    enum fence_state s = p->backend->ops->fence_query(p->backend, asked.event);
    state_lock(p);
    unpin(f, at, asked.event);
    if (s == FENCE_DONE) {
        f->complete_epoch = max_u64(f->complete_epoch, asked.epoch);
        publish(f);
    } else if (s == FENCE_LOST)
        lose(p);
    return s;
}

bool fence_poll(struct pool *p)
{
    struct fences *f = &p->fences;
    uint64_t before = f->complete_epoch;
    if (!f->count || f->lost)
        return false;
    /* Epochs finish in turn: look at the oldest, and only if that is done at the newest, and halve the rest. */
    uint64_t busy = UINT64_MAX;
    for (unsigned asked = 0; !f->lost; asked++) {
        unsigned lo = find_from(f, f->complete_epoch + 1), hi = find_from(f, busy);
        if (lo >= hi)
            break;
        unsigned at = asked == 0 ? lo : asked == 1 ? hi - 1 : lo + (hi - lo) / 2;
        uint64_t epoch = f->ring[at].epoch;
        if (query(p, at) == FENCE_BUSY) {
            if (at == lo)
                break;
            busy = epoch;
        }
    }
    if (f->complete_epoch == before)
        return false;
    collect(f);
    return true;
}

/* By a fence of its own, which is late: no free wants it waited for. */
bool fence_is_idle(struct pool *p)
{
    struct fences *f = &p->fences;
    fence_seal(p);
    if (f->lost || fence_is_unsealed(f))
        return false;
    watch_unsealed(1);
    if (atomic_fetch_or(&f->marks, FENCE_UNSEALED | FENCE_LATE) & FENCE_UNSEALED)
        watch_unsealed(-1);
    uint64_t epoch = f->open_epoch;
    fence_seal(p);
    fence_poll(p);
    return f->complete_epoch >= epoch;
}

/* Index of the oldest fence that covers epoch and may be waited for; count: none. */
static unsigned find_waitable(const struct fences *f, uint64_t epoch, bool late_too)
{
    unsigned at = find_from(f, epoch);
    while (at < f->count && f->ring[at].late && !late_too)
        at++;
    return at;
}

bool fence_is_running(const struct fences *f)
{
    return f->count && f->ring[f->count - 1].epoch > f->complete_epoch;
}

uint64_t fence_newest_waitable(const struct fences *f)
{
    if (fence_is_armed(f))
        return f->open_epoch;
    for (unsigned at = f->count; at > 0; at--)
        if (!f->ring[at - 1].late)
            return f->ring[at - 1].epoch;
    return 0;
}

bool fence_order(struct pool *p, uint64_t epoch, bool late_too)
{
    struct fences *f = &p->fences;
    if (epoch >= f->open_epoch)
        fence_seal(p);
    unsigned at = find_waitable(f, epoch, late_too);
    if (at == f->count || f->lost || !p->backend->has_order || f->ring[at].epoch <= f->ordered_epoch)
        return false;
    struct fence taken = f->ring[at];
    f->ring[at].pins++;
    p->stats.num_fence_orders++;
    state_unlock(p);
    int code = p->backend->ops->fence_order(p->backend, taken.event);
    state_lock(p);
    unpin(f, at, taken.event);
    if (code || taken.epoch <= f->ordered_epoch)
        return false;
    f->ordered_epoch = taken.epoch;
    publish(f);
    collect(f);
    return true;
}

bool fence_wait(struct pool *p, uint64_t epoch, bool late_too, uint64_t timeout_ns)
{
    struct fences *f = &p->fences;
    if (epoch >= f->open_epoch)
        fence_seal(p);
    unsigned at = find_waitable(f, epoch, late_too);
    if (at == f->count || f->lost)
        return false;
    struct fence taken = f->ring[at];
    f->ring[at].pins++;
    p->stats.num_fence_waits++;
    state_unlock(p);
    int code = p->backend->ops->fence_wait(p->backend, taken.event, timeout_ns);
    state_lock(p);
    unpin(f, at, taken.event);
    if (code || taken.epoch <= f->complete_epoch)
        return false;
    f->complete_epoch = taken.epoch;
    publish(f);
    collect(f);
    return true;
}

bool fence_leave_single(struct pool *p)
{
    struct fences *f = &p->fences;
#ifdef POOL_IGNORES_FENCES
    return false;
#endif
    if (f->mode == FENCE_MULTI)
        return false;
    if (f->mode == FENCE_LEAVING) {
        while (f->mode == FENCE_LEAVING)
            state_wait(p);
        return false;
    }
    /* From here on frees wait for fences; what is in the bins by now was freed in epochs up to this
     * one, and everything handed out of them so far too. So with the magazines: whoever saw one stream
     * and took something out is through when its lock has been had, and the mark of the free is seen. */
    f->mode = FENCE_LEAVING;
    atomic_store(&f->wanted, true); /* the sole stream's work that comes meanwhile still records first */
    publish(f);
    magazine_pass_all(p);
    uint64_t last = fence_is_unsealed(f) ? f->open_epoch : f->open_epoch - 1;
    bool waited = false;
    fence_seal(p);
    while (f->sealing) { /* another thread's record, of an epoch that counts */
        state_unlock(p);
        sched_yield();
        state_lock(p);
    }
    bool covered = f->count && f->ring[f->count - 1].epoch >= last;
    if (last > f->complete_epoch && !(covered && query(p, f->count - 1) == FENCE_DONE)) {
        waited = true;
        if (!fence_order(p, last, false) && !fence_order(p, last, true))
            fence_wait(p, last, true, LEAVE_TIMEOUT_NS);
    }
    /* Memory in the bins is no longer safe by itself, and cannot be made so. */
    if (fence_ready_epoch(f) < last)
        lose(p);
    f->mode = FENCE_MULTI;
    publish(f);
    atomic_store(&pool_sole, POOL_STREAM_NONE);
    state_broadcast(p);
    return waited;
}

/* What waits in the queue was freed by then or is the stream's own work: all of it is ready. The order is that
 * of tests/model/stream.pml: nothing is handed out before the breach was looked for, because who noted it
 * may have seen no sole stream, and go on. Who sees one comes to leave it, and waits for the lock. When the
 * stream is left, later work is ordered behind what was handed out meanwhile: that must need no late fence. */
bool fence_enter_single(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach)
{
    struct fences *f = &p->fences;
    if (f->mode != FENCE_MULTI || f->lost || !f->watches || f->complete_epoch < mark ||
        f->late_epoch > f->complete_epoch || atomic_load(&f->sealing))
        return false;
    /* A submission to the stream by another thread that did not find the pool eager has set the mark by now; one
     * that sets it from now on finds a record under way, or the pool eager, and comes for the lock. */
    atomic_fetch_add(&f->sealing, 1);
    bool enters = atomic_load(&f->marks) != (FENCE_UNSEALED | FENCE_LATE);
    if (enters) {
        atomic_store(&pool_sole, stream);
        enters = !atomic_load(breach);
        if (!enters)
            atomic_store(&pool_sole, POOL_STREAM_NONE);
    }
    if (enters) {
        f->mode = FENCE_SINGLE;
        publish(f);
        pending_retire(p, UINT64_MAX);
        p->stats.num_single_streams++;
    }
    atomic_fetch_sub(&f->sealing, 1);
    return enters;
}

void fence_unwatch(struct pool *p)
{
    if (p->fences.watches)
        watch_streams(-1);
    p->fences.watches = false;
}

void fence_finish(struct pool *p)
{
    struct fences *f = &p->fences;
    if (atomic_exchange(&f->marks, 0) & FENCE_UNSEALED)
        watch_unsealed(-1);
    if (f->mode != FENCE_MULTI)
        atomic_store(&pool_sole, POOL_STREAM_NONE);
    fence_unwatch(p);
    f->mode = FENCE_MULTI;
    f->lost = true;
    publish(f);
    while (f->count || f->spares) {
        uint64_t event = f->count ? f->ring[--f->count].event : f->spare[--f->spares];
        state_unlock(p);
        p->backend->ops->fence_destroy(p->backend, event);
        state_lock(p);
    }
}
