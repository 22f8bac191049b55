/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See segment.h.
 */
#include "pool/segment.h"

#include "pool/chunk.h"
#include "pool/find.h"
#include "pool/map.h"
#include "pool/state.h"
#include "pool/trim.h"

/* A shared segment is this part of all of them. */
#define SHARED_STEP_SHIFT 5
#define SHARED_STEP_MAX_BYTES (UINT64_C(32) << 20)
/* Rounding that never matters. */
#define ROUNDING_BYTES (UINT64_C(16) << 20)

/* What the pool may have beyond what the program needed at its peak, as a part of that: what is
 * over it goes back while the GPU is idle; in a free, if there is time for it; in a free in any
 * case, ... */
#define IDLE_SHIFT 3
#define SOFT_SHIFT 4
#define HARD_SHIFT 0
#define PART_SHIFT 1 /* down to this */
/* ... the latter earlier once the pool has half of the device. */
#define FULL_SHIFT 1
#define FULL_HARD_SHIFT 2
#define REPAY_WAIT_NS UINT64_C(100000000)

_Atomic bool pool_owes;

/* Sixteen sizes to a doubling from 32 MiB on: sizes that vary a little share segments. */
uint64_t segment_bytes(uint64_t size_bytes)
{
    return round_up(size_bytes,
                    max_u64(GRANULE_BYTES, UINT64_C(1) << (log2_floor(size_bytes) - 4)));
}

bool segment_fits(uint64_t have_bytes, uint64_t size_bytes)
{
    return have_bytes >= size_bytes &&
           have_bytes <= max_u64(segment_bytes(size_bytes), size_bytes + size_bytes / 8);
}

/* Bytes that the pool would have beyond what the program needed at its peak, and that part of it.
 */
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

/* Shared segments hold at least two blocks, and more the more there are: little is lost at their
 * ends. */
static uint64_t shared_bytes(const struct zone *z)
{
    uint64_t have = 0, least = 2 * z->pool->small_max_bytes;
    for (const struct list *n = z->chunks.next; n != &z->chunks; n = n->next)
        have += list_entry(n, struct chunk, all)->size_bytes;
    have = round_down(have >> SHARED_STEP_SHIFT, GRANULE_BYTES);
    return max_u64(least, min_u64(have, SHARED_STEP_MAX_BYTES));
}

/* Do whole granules cost this program too much? */
static bool rounding_hurts(const struct pool *p)
{
    uint64_t lost = p->stats.allocated_bytes - p->stats.requested_bytes;
    return lost > max_u64(p->stats.requested_bytes / 8, ROUNDING_BYTES);
}

/* A debt is paid by the next free that may wait. That costs the program's being ahead of the GPU (paid
 * down to a sixteenth whenever a quarter was owed, training took 1.4 times as long, H200), so it has to be
 * within the allowance for saving memory; or the debt is large, and only a part is paid. */
static void owe(struct pool *p, uint64_t more_bytes, uint64_t size_bytes)
{
    bool full = p->stats.reserved_bytes + more_bytes > p->backend->total_bytes >> FULL_SHIFT;
    p->owes_beyond_shift = 0;
    if (full && excess_bytes(p, more_bytes, size_bytes, FULL_HARD_SHIFT))
        p->owes_beyond_shift = SOFT_SHIFT;
    else if (excess_bytes(p, more_bytes, size_bytes, HARD_SHIFT))
        p->owes_beyond_shift = PART_SHIFT;
    else if (excess_bytes(p, more_bytes, size_bytes, SOFT_SHIFT) &&
             effort_is_left(&p->effort, p->backend->ops->now_ns(p->backend)))
        p->owes_beyond_shift = SOFT_SHIFT;
    if (p->owes_beyond_shift)
        atomic_store_explicit(&pool_owes, true, memory_order_relaxed);
}

void pool_repay(uint64_t freed_addr)
{
    struct granule *g;
    struct pool *p = find_owner(freed_addr, &g);
    atomic_store_explicit(&pool_owes, false, memory_order_relaxed);
    if (!p)
        return;
    unsigned beyond_shift = p->owes_beyond_shift;
    if (beyond_shift && !p->fences.lost) {
        p->owes_beyond_shift = 0;
        uint64_t start_ns = p->backend->ops->now_ns(p->backend);
        uint64_t last = p->fences.open_epoch - !p->fences.unsealed;
        if (last > p->fences.complete_epoch)
            fence_wait(p, last, false, REPAY_WAIT_NS);
        pending_retire(p, fence_ready_epoch(&p->fences));
        uint64_t excess = excess_bytes(p, 0, 0, beyond_shift);
        if (excess && p->fences.complete_epoch >= last)
            trim_release(p, excess, UINT64_MAX);
        effort_spend(&p->effort, p->backend->ops->now_ns(p->backend) - start_ns);
    }
    state_unlock(p);
}

enum grow_result segment_grow(struct pool *p, struct zone *z, uint64_t size_bytes, int *code)
{
    uint64_t bytes = segment_bytes(max_u64(size_bytes, GRANULE_BYTES)), addr = 0;
    if (z->kind == ZONE_SMALL)
        bytes = max_u64(bytes, shared_bytes(z));
    else if (size_bytes <= SEGMENT_SHARED_MAX_BYTES && rounding_hurts(p))
        p->small_max_bytes = SEGMENT_SHARED_MAX_BYTES; /* from the next request on */
    /* Segments of other sizes are of no use now. Giving them back waits for all work of the
     * context, so it is done here only while there is none: a request must not wait for a kernel
     * that never ends. */
    uint64_t excess = excess_bytes(p, bytes, size_bytes, IDLE_SHIFT);
    if (!list_empty(&p->small.dead) && fence_is_idle(p))
        chunk_release_dead(p);
    if (excess && excess < p->stats.reserved_bytes && fence_is_idle(p)) {
        pending_retire(p, fence_ready_epoch(&p->fences));
        trim_release(p, excess, UINT64_MAX);
    }
    if (p->abandoned) /* while the lock was dropped */
        return GROW_FAILED;
    owe(p, bytes, size_bytes);
    if (state_over_limit(p, bytes))
        return GROW_LIMIT;
    struct chunk *c = host_cache_get(&p->chunk_cache);
    if (!c || !host_cache_ensure(&p->block_cache, 1)) {
        if (c)
            host_cache_put(&p->chunk_cache, c);
        return GROW_FAILED;
    }
    p->planned_bytes += bytes;
    p->busy++;
    state_unlock(p);
    int failed = p->backend->ops->segment_alloc(p->backend, bytes, &addr);
    /* The map wants whole granules; every driver so far aligns allocations of this size to them. */
    bool odd = !failed && (addr % GRANULE_BYTES || !map_ensure(addr, bytes));
    if (odd)
        p->backend->ops->segment_free(p->backend, addr);
    state_lock(p);
    p->planned_bytes -= bytes;
    p->busy--;
    state_broadcast(p);
    struct block *b = failed || odd ? NULL : zone_add_region(z, addr, bytes, BLOCK_BUSY);
    if (!b) {
        host_cache_put(&p->chunk_cache, c);
        if (failed)
            *code = failed;
        if (failed && failed == p->backend->nomem_code)
            return GROW_NOMEM;
        p->stats.num_backend_failures++;
        return GROW_FAILED;
    }
    c->addr = addr;
    c->size_bytes = bytes;
    c->zone = z;
    c->idle_since_ns = p->now_ns;
    map_claim(c, p);
    list_push_back(&z->chunks, &c->all);
    stats_raise(&p->stats.reserved_bytes, bytes);
    p->stats.num_device_alloc++;
    zone_give(b);
    return GROW_OK;
}
