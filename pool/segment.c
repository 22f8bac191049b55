/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See segment.h.
 */
#include "pool/segment.h"

#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/lookup.h"
#include "pool/map.h"
#include "pool/release.h"
#include "pool/state.h"
#include "pool/tuning.h"

#define NOTHING_SHIFT 63

_Atomic bool pool_release_due;

/* Bytes that the pool would have beyond the peak need of the program and a part (spare_shift) of
 * it. */
static uint64_t excess_bytes(const struct pool *p, uint64_t more_bytes, uint64_t size_bytes,
                             unsigned spare_shift)
{
    const struct pool_stats *s = &p->stats;
    uint64_t peak = max_u64(s->requested_peak_bytes, s->requested_bytes + size_bytes);
    uint64_t used = s->allocated_bytes + s->pending_bytes + p->planned_bytes + more_bytes;
    uint64_t have = s->reserved_bytes + p->planned_bytes + more_bytes;
    uint64_t fair = max_u64(peak + (peak >> spare_shift), used);
    return have > fair ? have - fair : 0;
}

static struct block *take_whole(struct pool *p, uint64_t size_bytes, uint64_t most_bytes)
{
    struct block *b = zone_take_whole(&p->large, size_bytes, most_bytes, BLOCK_LIVE);
    if (b) {
        b->item.slack_bytes = b->size_bytes - min_u64(b->size_bytes, segment_new_bytes(size_bytes));
        p->slack_bytes += b->item.slack_bytes;
    }
    return b;
}

struct block *segment_take(struct pool *p, uint64_t size_bytes)
{
    return take_whole(p, size_bytes, segment_most_bytes(size_bytes));
}

/* The largest segment that a request takes where that saves another one; 0: it saves none. A
 * segment serves down to half its size, while all slack is at most a part of the peak. None serves
 * so once the pool has half of the device, because slack would be missed in the end. */
static uint64_t spare_bytes(const struct pool *p, uint64_t size_bytes)
{
    const struct pool_stats *s = &p->stats;
    uint64_t peak = max_u64(s->requested_peak_bytes, s->requested_bytes + size_bytes);
    uint64_t have = s->reserved_bytes + p->planned_bytes + segment_new_bytes(size_bytes);
    uint64_t slack = s->allocated_bytes - s->requested_bytes,
             most_slack = peak >> SEGMENT_SLACK_SHIFT;
    bool full = have > p->backend->total_bytes >> SEGMENT_FULL_SHIFT;
    if (have <= peak || full || slack >= most_slack)
        return 0;
    return min_u64(size_bytes + most_slack - slack, size_bytes << SEGMENT_SPARE_SHIFT);
}

/* May idle segments go back now without a wait for the program's work? What is ordered behind other
 * work must be complete. Drops the lock. */
static bool may_give_back(struct pool *p)
{
    if (!p->backend->frees_beside)
        return fence_is_idle(p);
    fence_poll(p);
    return p->fences.ordered_epoch <= p->fences.complete_epoch;
}

struct block *segment_take_spare(struct pool *p, uint64_t size_bytes)
{
    const struct block *best = placement_find(&p->large.placement, size_bytes, UNIT_BYTES);
    /* With more excess, segments that do not fit go back instead, if they may. */
    if (!best || best->size_bytes > spare_bytes(p, size_bytes) ||
        (excess_bytes(p, segment_new_bytes(size_bytes), size_bytes, SEGMENT_IDLE_SHIFT) &&
         may_give_back(p)) ||
        p->fences.lost)
        return NULL;
    return take_whole(p, size_bytes, spare_bytes(p, size_bytes));
}

/* Shared segments hold at least two blocks, and more as the zone grows: little is lost at their
 * ends. */
static uint64_t shared_bytes(const struct zone *z)
{
    uint64_t least = 2 * z->pool->small_max_bytes;
    uint64_t have = round_down(z->chunk_bytes >> SHARED_STEP_SHIFT, GRANULE_BYTES);
    return max_u64(least, min_u64(have, SHARED_STEP_MAX_BYTES));
}

/* Does rounding cost this program too much? The slack of larger segments does not count: it costs
 * no memory. */
static bool rounding_hurts(const struct pool *p)
{
    uint64_t lost = p->stats.allocated_bytes - p->stats.requested_bytes;
    return lost >
           max_u64(p->stats.requested_bytes >> ROUNDING_SHIFT, ROUNDING_BYTES) + p->slack_bytes;
}

/* Notes what the next free that may wait has to give back. While segments go back, and until the
 * program is ahead of the GPU again, the GPU is idle. When frees gave memory back too often,
 * training took 1.4 times as long (H200). So one free gives back all that is beyond the peak, and
 * the next such free comes much later. Each SEGMENT_PATIENCE_NS of overdrawn time budget doubles
 * what is allowed beyond the peak. Then the free keeps half of what is allowed. Once the pool has
 * half of the device, at most a quarter of the peak is allowed beyond it. */
static void plan_release(struct pool *p, uint64_t more_bytes, uint64_t size_bytes)
{
    unsigned shift = SEGMENT_KEPT_SHIFT, most_shift = 0;
    if (p->stats.reserved_bytes + more_bytes > p->backend->total_bytes >> SEGMENT_FULL_SHIFT)
        most_shift = SEGMENT_FULL_KEPT_SHIFT;
    time_budget_is_left(&p->time_budget, p->backend->ops->now_ns(p->backend));
    for (int64_t left_ns = p->time_budget.left_ns;
         left_ns < -SEGMENT_PATIENCE_NS && shift > most_shift; shift--)
        left_ns += SEGMENT_PATIENCE_NS;
    p->release_beyond_shift = 0;
    if (!excess_bytes(p, more_bytes, size_bytes, shift))
        return;
    p->release_beyond_shift = shift < SEGMENT_KEPT_SHIFT ? shift + 1 : NOTHING_SHIFT;
    atomic_store_explicit(&pool_release_due, true, memory_order_relaxed);
}

/* Waits for all work up to the latest free, as that free would do without the pool. Goes on while
 * work completes within each RELEASE_WAIT_NS. After one wait in vain it makes no other, because the
 * work may never end. */
static bool wait_for_frees(struct pool *p)
{
    struct fences *f = &p->fences;
    uint64_t last = f->open_epoch - !fence_is_unsealed(f), before;
    if (fence_was_vain(f, FENCE_WAIT_RELEASE))
        return false;
    do {
        before = f->complete_epoch;
        if (last > f->complete_epoch && !fence_wait(p, last, false, RELEASE_WAIT_NS))
            fence_poll(p);
    } while (last > f->complete_epoch && f->complete_epoch > before);
    fence_note_vain(f, FENCE_WAIT_RELEASE, last);
    return last <= f->complete_epoch;
}

void pool_release_at_free(uint64_t freed_addr)
{
    struct granule *g;
    struct pool *p = find_owner(freed_addr, &g);
    atomic_store_explicit(&pool_release_due, false, memory_order_relaxed);
    if (!p)
        return;
    p->threads_inside++;
    unsigned beyond_shift = p->release_beyond_shift;
    if (beyond_shift && !p->fences.lost) {
        p->release_beyond_shift = 0;
        uint64_t start_ns = p->backend->ops->now_ns(p->backend);
        bool complete = wait_for_frees(p);
        uint64_t waited_ns = p->backend->ops->now_ns(p->backend);
        pending_retire_all(p);
        uint64_t excess = excess_bytes(p, 0, 0, beyond_shift);
        if (excess && complete)
            release_idle(p, excess, UINT64_MAX);
        uint64_t end_ns = p->backend->ops->now_ns(p->backend);
        uint64_t took_ns = end_ns - waited_ns;
        took_ns += min_u64(waited_ns - start_ns, RELEASE_WAIT_COUNTS_NS);
        time_budget_spend(&p->time_budget, took_ns, false);
    }
    state_leave(p);
}

/* NULL: no host memory, or the segment cannot be this pool's (abandon.c). */
static struct block *add(struct zone *z, struct chunk *c, uint64_t addr, uint64_t size_bytes)
{
    struct pool *p = z->pool;
    bool is_over = p->evicted || p->abandoned;
    struct block *b = is_over ? NULL : zone_add_region(z, addr, size_bytes, BLOCK_BUSY);
    if (!b)
        return NULL;
    c->addr = addr;
    c->size_bytes = size_bytes;
    c->idle_since_ns = p->now_ns;
    if (map_claim_segment(c, p))
        return b;
    zone_drop_region(b);
    return NULL;
}

/* Gives back what the map cannot hold. It stays if its context may have ended, as what a pool does
 * not take (abandon.c, step 7). */
static void give_odd_back(struct pool *p, uint64_t addr)
{
    const struct backend_ops *ops = p->backend->ops;
    if (ops->segment_free_begin && !ops->segment_free_begin(p->backend, true))
        return;
    state_lock(p);
    bool may = !p->evicted && !atomic_load(&p->backend->gone);
    state_unlock(p);
    if (may)
        ops->segment_free(p->backend, addr, true);
    if (ops->segment_free_end)
        ops->segment_free_end(p->backend);
}

enum grow_result segment_grow(struct pool *p, struct zone *z, uint64_t size_bytes, int *code)
{
    uint64_t bytes = segment_new_bytes(max_u64(size_bytes, GRANULE_BYTES)), addr = 0;
    if (z->kind == ZONE_SMALL)
        bytes = max_u64(bytes, shared_bytes(z));
    else if (size_bytes <= SEGMENT_SHARED_MAX_BYTES &&
             p->small_max_bytes < SEGMENT_SHARED_MAX_BYTES && rounding_hurts(p))
        p->small_max_bytes = SEGMENT_SHARED_MAX_BYTES; /* from the next request on */
    /* Segments of other sizes are of no use now. If giving them back waits for all work of the
     * context, the request gives them back only while there is no work. A request must not wait for
     * a kernel that never ends. */
    uint64_t excess = excess_bytes(p, bytes, size_bytes, SEGMENT_IDLE_SHIFT);
    if (excess && excess < p->stats.reserved_bytes && may_give_back(p)) {
        pending_retire_all(p);
        release_idle(p, excess, UINT64_MAX);
    }
    if (p->abandoned) /* while the lock was dropped */
        return GROW_FAILED;
    plan_release(p, bytes, size_bytes);
    if (state_over_limit(p, bytes))
        return GROW_LIMIT;
    struct chunk *c = host_cache_get(&p->chunk_cache);
    if (!c || !host_cache_ensure(&p->block_cache, 1)) {
        if (c)
            host_cache_put(&p->chunk_cache, c);
        return GROW_FAILED;
    }
    p->planned_bytes += bytes;
    job_begin(p);
    state_unlock(p);
    int failed = p->backend->ops->segment_alloc(p->backend, bytes, &addr);
    /* The map needs whole granules; every driver so far aligns allocations of this size to them. */
    bool odd = !failed && (addr % GRANULE_BYTES || !map_ensure(addr, bytes));
    if (odd)
        give_odd_back(p, addr);
    else if (!failed)
        find_evict(addr, bytes);
    state_lock(p);
    p->planned_bytes -= bytes;
    job_end(p);
    state_job_done(p);
    struct block *b = failed || odd ? NULL : add(z, c, addr, bytes);
    if (!b) {
        host_cache_put(&p->chunk_cache, c);
        if (failed)
            *code = failed;
        if (failed && failed == p->backend->nomem_code)
            return GROW_NOMEM;
        p->stats.num_backend_failures++;
        return GROW_FAILED;
    }
    chunk_enter(c, z);
    stats_raise(&p->stats.reserved_bytes, bytes);
    p->stats.num_device_alloc++;
    zone_give(b);
    return GROW_OK;
}
