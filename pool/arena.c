/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See arena.h. Growing works in three steps. Under the lock the pool chooses a window of addresses,
 * and all blocks in it become BUSY. Without the lock it asks the driver. Under the lock again every
 * part of the window becomes free memory or a hole, as it came out.
 */
#include "pool/arena.h"

#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/lookup.h"
#include "pool/map.h"
#include "pool/peak.h"
#include "pool/placement.h"
#include "pool/release.h"
#include "pool/state.h"
#include "pool/tuning.h"

bool arena_reserve(struct pool *p)
{
    struct backend *b = p->backend;
    /* The large zone fragments only in address space, so it gets sixteen times the device. */
    uint64_t device = UINT64_C(1) << (log2_floor(max_u64(b->total_bytes, GRANULE_BYTES)) + 1);
    uint64_t large = min_u64(device * 16, ADDR_LIMIT / 16), addr;
    /* One range for both: the driver takes 15 us for it, and 26 for two (H200). */
    if (b->ops->reserve(b, device + large, &addr))
        return false;
    if (addr % GRANULE_BYTES || addr + device + large > ADDR_LIMIT ||
        !zone_reserve(&p->small, addr, device) || !zone_reserve(&p->large, addr + device, large)) {
        b->ops->unreserve(b, addr, device + large);
        zone_init(&p->small, p, ZONE_SMALL);
        return false;
    }
    return true;
}

/* What one call to arena_grow works on. Its blocks are BUSY, and no other thread has its chunks. */
struct plan {
    bool frugal;                /* idle memory is moved before new is taken */
    struct block *first, *last; /* the window, by address */
    uint64_t missing_bytes;     /* its holes */
    struct chunk *idle;         /* seized, to be moved; not yet placed */
    struct chunk *list, **tail; /* one chunk for each hole of the window, by address */
    uint64_t create_bytes;      /* of those that are to be created */
};

/* Is nothing idle, but for what is too small to matter? Else memory is fragmented. */
static bool is_unfragmented(const struct pool *p)
{
    uint64_t used = p->stats.allocated_bytes + p->stats.pending_bytes;
    return p->stats.reserved_bytes - used <=
           max_u64(used >> ARENA_FRAGMENTED_SHIFT, ARENA_FRAGMENTED_BYTES);
}

static uint64_t step_bytes(const struct pool *p, const struct zone *z)
{
    uint64_t have = 0;
    if (z->kind == ZONE_LARGE) {
        if (!is_unfragmented(p))
            return 0;
        have =
            min_u64(p->stats.reserved_bytes >> ARENA_LARGE_STEP_SHIFT, ARENA_LARGE_STEP_MAX_BYTES);
    } else {
        have = min_u64(z->chunk_bytes >> ARENA_SMALL_STEP_SHIFT, ARENA_SMALL_STEP_MAX_BYTES);
    }
    return round_down(have, GRANULE_BYTES);
}

/* Makes every block of the window BUSY. Holes are cut to whole granules. The last hole is stretched
 * to the step of the zone. Free blocks are cut to the window, so that chunks beyond it can be moved
 * into it. False: no host memory, nothing done. */
static bool claim_window(struct pool *p, struct zone *z, const struct window *w, struct plan *plan)
{
    uint64_t step = step_bytes(p, z);
    uint64_t extra = step > w->missing_bytes ? step - w->missing_bytes : 0;
    struct block *b = w->run;
    /* Two splits are the most. Only the block that contains w->start begins before it, and only the
     * one that contains w->end ends behind it. What the second split leaves begins at w->end or
     * later, so the loop does not come to it. Of any other hole `lo` is not above the address, and
     * `hi` is not below the end. */
    if (!host_cache_ensure(&p->block_cache, 2))
        return false;
    while (block_end(b) <= w->start)
        b = b->next;
    plan->first = NULL;
    for (; b && b->addr < w->end; b = b->next) {
        if (b->state == BLOCK_FREE) {
            if (b->addr < w->start)
                b = zone_split(b, w->start);
            if (block_end(b) > w->end)
                zone_split(b, w->end);
            placement_remove(&z->placement, b);
            b->was_free = true;
        } else {
            uint64_t lo = round_down(max_u64(w->start, b->addr), GRANULE_BYTES);
            uint64_t hi = round_up(min_u64(w->end, block_end(b)), GRANULE_BYTES);
            if (block_end(b) > hi)
                hi = min_u64(hi + extra, block_end(b));
            if (lo > b->addr)
                b = zone_split(b, lo);
            if (hi < block_end(b))
                zone_split(b, hi);
            list_remove(&b->link);
            b->was_free = false;
            plan->missing_bytes += b->size_bytes;
        }
        b->state = BLOCK_BUSY;
        if (!plan->first)
            plan->first = b;
        plan->last = b;
    }
    return true;
}

/* The size of new chunks. Only whole idle chunks can be moved to where memory is needed. Idle
 * memory in a chunk that is partly live stays. So while nothing is idle, chunks are as large as the
 * requests, which needs the fewest driver calls, up to ARENA_CHUNK_MAX_BYTES. Once memory is
 * fragmented, chunks are small, whether the move budget is used up or not, because chunks cannot be
 * cut later. Each costs calls of the driver. So they are as small as can be useful only while the
 * time budget is full. */
static uint64_t most_bytes(const struct pool *p, const struct plan *plan)
{
    if (is_unfragmented(p))
        return ARENA_CHUNK_MAX_BYTES;
    uint64_t missing = plan->missing_bytes, reserved = p->stats.reserved_bytes;
    uint64_t fine = max_u64(reserved >> ARENA_FINE_SHIFT, missing >> ARENA_FINE_REQUEST_SHIFT);
    if (!time_budget_is_full(&p->time_budget)) {
        uint64_t part =
            min_u64(missing >> ARENA_SPENT_REQUEST_SHIFT, ARENA_SPENT_REQUEST_MAX_BYTES);
        fine = max_u64(fine, max_u64(reserved >> ARENA_SPENT_SHIFT, part));
    }
    return min_u64(UINT64_C(1) << log2_floor(max_u64(fine, GRANULE_BYTES)), ARENA_CHUNK_MAX_BYTES);
}

/* The next chunk for a hole with that much room: an idle one that fits, else a new one. */
static struct chunk *chunk_for_hole(struct pool *p, struct plan *plan, uint64_t room_bytes)
{
    for (struct chunk **at = &plan->idle; *at; at = &(*at)->plan)
        if ((*at)->size_bytes <= room_bytes) {
            struct chunk *c = *at;
            *at = c->plan;
            c->outcome = CHUNK_STAYED;
            return c;
        }
    struct chunk *c = host_cache_get(&p->chunk_cache);
    if (c) {
        c->outcome = CHUNK_GONE;
        c->size_bytes = min_u64(room_bytes, most_bytes(p, plan));
        plan->create_bytes += c->size_bytes;
        list_init(&c->all);
        list_init(&c->parked);
    }
    return c;
}

/* Cuts the holes of the window into pieces, one for each chunk. False: no host memory. */
static bool assign(struct pool *p, struct plan *plan)
{
    for (struct block *b = plan->first;; b = b->next) {
        if (!b->was_free) {
            struct chunk *c = NULL;
            if (host_cache_ensure(&p->block_cache, 1) && map_ensure(b->addr, b->size_bytes))
                c = chunk_for_hole(p, plan, b->size_bytes);
            if (!c)
                return false;
            if (c->size_bytes < b->size_bytes) {
                struct block *rest = zone_split(b, b->addr + c->size_bytes);
                if (plan->last == b)
                    plan->last = rest;
            }
            c->target = b;
            c->plan = NULL;
            *plan->tail = c;
            plan->tail = &c->plan;
        }
        if (b == plan->last)
            return true;
    }
}

/* A chunk that could not come to its target stays where it was if it is still mapped there.
 * Otherwise it is gone. */
static void leave_behind(struct backend *b, struct chunk *c, bool moved)
{
    if (moved && c->in_use_by_gpu) {
        c->outcome = CHUNK_STAYED;
        return;
    }
    b->ops->release(b, c->handle, c->size_bytes);
    c->outcome = moved ? CHUNK_LOST : CHUNK_GONE;
}

static void release_unplaced(struct backend *b, struct chunk *list, const struct chunk *end)
{
    for (struct chunk *c = list; c != end; c = c->plan)
        if (c->outcome == CHUNK_GONE)
            b->ops->release(b, c->handle, c->size_bytes);
}

/* Would the driver refuse some of the new chunks? To create the others would take their memory from
 * other processes meanwhile. So, where less is free, one handle as large as all of them is tried
 * first: the driver may have more than it says, because it gives what its own pools hold idle. */
static int ask_for_all(struct backend *b, const struct chunk *list, uint64_t create_bytes)
{
    uint64_t free_bytes, total_bytes, handle;
    while (list && list->outcome != CHUNK_GONE)
        list = list->plan;
    if (create_bytes < ARENA_ASK_BYTES || list->size_bytes == create_bytes ||
        (!b->ops->mem_info(b, &free_bytes, &total_bytes) && free_bytes >= create_bytes))
        return 0;
    int code = b->ops->create(b, create_bytes, &handle);
    if (!code)
        b->ops->release(b, handle, create_bytes);
    return code == b->nomem_code ? code : 0;
}

/* The memory of all new chunks, or of none. */
static int create_all(struct backend *b, struct chunk *list, uint64_t create_bytes)
{
    int code = ask_for_all(b, list, create_bytes);
    struct chunk *end = list;
    for (; end && !code; end = end->plan)
        if (end->outcome == CHUNK_GONE &&
            (code = b->ops->create(b, end->size_bytes, &end->handle)) != 0)
            release_unplaced(b, list, end);
    return code;
}

/* Brings one chunk to its target, where it is not yet accessible. */
static int map_to_target(struct backend *b, struct chunk *c)
{
    bool moved = c->outcome == CHUNK_STAYED;
    if (moved && !c->in_use_by_gpu)
        b->ops->unmap(b, c->addr, c->size_bytes);
    int code = b->ops->map(b, c->target->addr, c->size_bytes, c->handle);
    if (!code)
        c->outcome = moved ? CHUNK_MOVED : CHUNK_CREATED;
    else
        leave_behind(b, c, moved);
    return code;
}

static bool is_at_target(const struct chunk *c)
{
    return c && (c->outcome == CHUNK_MOVED || c->outcome == CHUNK_CREATED);
}

/* The driver's part, without the lock. Stops at the first failure; outcome tells where each chunk
 * is. Access is granted once for each contiguous range, which is cheaper than chunk by chunk. What
 * the backend refuses a range it may give each chunk. */
static int map_all(struct backend *b, struct chunk *list, uint64_t create_bytes)
{
    int code = create_all(b, list, create_bytes);
    if (code)
        return code;
    struct chunk *rest = list;
    for (; rest && !code; rest = rest->plan) {
        map_touch(rest->target->addr, rest->size_bytes);
        find_evict(rest->target->addr, rest->size_bytes);
        code = map_to_target(b, rest);
    }
    release_unplaced(b, rest, NULL);
    for (struct chunk *c = list; is_at_target(c);) {
        struct chunk *last = c;
        while (is_at_target(last->plan) && last->plan->target->addr == block_end(last->target))
            last = last->plan;
        struct chunk *after = last->plan;
        int refused = b->ops->allow(b, c->target->addr, block_end(last->target) - c->target->addr);
        for (; refused && c != after; c = c->plan) {
            int denied = b->ops->allow(b, c->target->addr, c->size_bytes);
            code = code ? code : denied;
            if (!denied)
                continue;
            b->ops->unmap(b, c->target->addr, c->size_bytes);
            leave_behind(b, c, c->outcome == CHUNK_MOVED);
        }
        c = after;
    }
    return code;
}

/* A chunk that was placed belongs to its new place, any other to its old one, if it has one. */
static void settle_chunk(struct pool *p, struct zone *z, struct chunk *c)
{
    bool leaves = c->outcome == CHUNK_MOVED || c->outcome == CHUNK_LOST;
    uint64_t epoch = leaves && c->in_use_by_gpu ? c->busy_block->item.epoch : 0;
    if (leaves) {
        chunk_leave(c);
        map_disclaim(c, p);
        if (c->in_use_by_gpu)
            chunk_add_ghost(c->busy_block);
        else
            zone_make_hole(c->busy_block);
        c->busy_block = NULL;
        p->stats.num_chunk_moves++;
    }
    if (is_at_target(c)) {
        c->addr = c->target->addr;
        c->idle_since_ns = p->now_ns;
        c->target->was_free = true;
        c->target->item.epoch = epoch;
        map_claim(c, p);
        chunk_enter(c, z);
        if (c->outcome == CHUNK_CREATED) {
            stats_raise(&p->stats.reserved_bytes, c->size_bytes);
            p->stats.num_device_alloc++;
        }
        return;
    }
    if (c->outcome == CHUNK_STAYED) {
        zone_give(c->busy_block);
        c->busy_block = NULL;
        return;
    }
    if (c->outcome == CHUNK_LOST)
        p->stats.reserved_bytes -= c->size_bytes;
    host_cache_put(&p->chunk_cache, c);
}

static void settle_plan(struct pool *p, struct zone *z, struct plan *plan)
{
    chunk_unseize(plan->idle);
    while (plan->list) {
        struct chunk *c = plan->list;
        plan->list = c->plan;
        settle_chunk(p, z, c);
    }
    for (struct block *b = plan->first, *next;; b = next) {
        bool last = b == plan->last;
        next = b->next; /* BUSY, or beyond the window: b merges only with blocks below it */
        if (b->was_free)
            zone_give(b);
        else
            zone_make_hole(b);
        if (last)
            return;
    }
}

/* The pool made large chunks while nothing was idle. Once they are idle they go back to the driver,
 * because a small block would pin the whole of one. Fine chunks come instead. Chunks whose old work
 * is not complete can only be moved. Without this one synthetic program peaks at 1.127 of its live
 * memory instead of 1.071, and the mean of 26 rises by 0.3 % (one stream). */
static void release_coarse_chunks(struct pool *p, struct plan *plan)
{
    struct chunk *coarse = NULL;
    uint64_t most = ARENA_COARSE * most_bytes(p, plan);
    for (struct chunk **at = &plan->idle; *at;) {
        struct chunk *c = *at;
        if (c->in_use_by_gpu || c->size_bytes <= most) {
            at = &c->plan;
            continue;
        }
        *at = c->plan;
        c->plan = coarse;
        coarse = c;
    }
    chunk_release(p, coarse);
}

/* Takes idle memory first. Drops the lock. */
static void seize_idle(struct pool *p, const struct zone *z, struct plan *plan)
{
    uint64_t got = 0, more = 0;
    plan->idle = chunk_seize_idle(&p->large, plan->missing_bytes, UINT64_MAX, true, &got);
    if (got < plan->missing_bytes) {
        struct chunk *small =
            chunk_seize_idle(&p->small, plan->missing_bytes - got, UINT64_MAX, true, &more);
        struct chunk **end = &plan->idle;
        while (*end)
            end = &(*end)->plan;
        *end = small;
    }
    if (z->kind == ZONE_SMALL)
        return;
    unsigned moves = 0;
    for (const struct chunk *c = plan->idle; c; c = c->plan)
        moves++;
    release_coarse_chunks(p, plan);
    /* More idle memory than one request may move goes back to the driver instead, a few chunks at a
     * time. */
    if (moves >= CHUNK_MOVES && got + more < plan->missing_bytes)
        release_idle(p, plan->missing_bytes - got - more, UINT64_MAX);
}

/* Would growing by so much take more memory than the pool may have without moves? With several
 * streams the bound has room for the memory that may be pending, also while that memory is idle.
 * The pool may not have more than a part of the device. Memory taken without moves is in chunks as
 * large as the requests, and a small block may pin the whole of one. */
static bool is_too_much(const struct pool *p, uint64_t size_bytes, uint64_t missing_bytes)
{
    const struct pool_stats *s = &p->stats;
    uint64_t used = s->allocated_bytes + s->pending_bytes + size_bytes;
    uint64_t peak = max_u64(s->allocated_peak_bytes, used);
    uint64_t most = peak + (peak >> ARENA_SPARE_SHIFT);
    if (fence_had_several_streams(&p->fences))
        most = max_u64(most, s->allocated_peak_bytes + pending_run_ahead_bytes(p));
    most = min_u64(most, p->backend->total_bytes >> ARENA_FULL_SHIFT);
    return s->reserved_bytes + p->planned_bytes + missing_bytes > most;
}

static enum grow_result grow_window(struct pool *p, struct zone *z, uint64_t size_bytes,
                                    uint64_t align, bool frugal, int *code)
{
    struct window w;
    struct plan plan = {.frugal = frugal};
    enum grow_result result = GROW_FAILED;
    plan.tail = &plan.list;
    if (!placement_find_window(z, size_bytes, align, &w) || !claim_window(p, z, &w, &plan))
        return GROW_FAILED;
    plan.frugal = frugal || is_too_much(p, size_bytes, plan.missing_bytes);
    p->stats.num_refused_moves += !plan.frugal;
    if (plan.frugal)
        seize_idle(p, z, &plan);
    if (!assign(p, &plan))
        goto out;
    if (plan.create_bytes && state_over_limit(p, plan.create_bytes)) {
        result = GROW_LIMIT;
        goto out;
    }
    p->planned_bytes += plan.create_bytes;
    job_begin(p);
    state_unlock(p);
    int failed = map_all(p->backend, plan.list, plan.create_bytes);
    state_lock(p);
    job_end(p);
    p->planned_bytes -= plan.create_bytes;
    result = GROW_OK;
    if (failed) {
        *code = failed;
        result = failed == p->backend->nomem_code ? GROW_NOMEM : GROW_FAILED;
        p->stats.num_backend_failures += result == GROW_FAILED;
    }
out:
    settle_plan(p, z, &plan);
    if (result != GROW_OK) /* some chunks may have come; the next try may give others back */
        peak_record(p, z, 0, 0);
    state_job_done(p);
    return result;
}

/* Counts everything done to save memory, so that its time can be charged. */
static uint64_t mapping_calls(const struct pool *p)
{
    return p->stats.num_chunk_moves + p->stats.num_device_alloc + p->stats.num_device_free;
}

/* Does the program need more than ever before? Then the pool grows whatever it does to save
 * memory. */
static bool is_new_peak(const struct pool *p, uint64_t size_bytes)
{
    const struct pool_stats *s = &p->stats;
    return s->allocated_bytes + s->pending_bytes + size_bytes > s->allocated_peak_bytes;
}

enum grow_result arena_grow(struct pool *p, struct zone *z, uint64_t size_bytes, uint64_t align,
                            int *code)
{
    uint64_t start_ns = p->backend->ops->now_ns(p->backend), ghost_bytes = p->ghost_bytes;
    bool frugal = time_budget_is_left(&p->time_budget, start_ns);
    /* Complete chunks move for good; only the others leave ghosts. */
    fence_seal(p);
    fence_poll(p);
    chunk_reap_ghosts(p, false);
    bool reaped = p->ghost_bytes != ghost_bytes, new_peak = is_new_peak(p, size_bytes);
    chunk_release_dead(p); /* before more is taken: it is of no other use */
    uint64_t before = mapping_calls(p);
    enum grow_result result = grow_window(p, z, size_bytes, align, frugal, code);
    if (!frugal && (result == GROW_NOMEM || result == GROW_LIMIT))
        result = grow_window(p, z, size_bytes, align, true, code);
    uint64_t took_ns = p->backend->ops->now_ns(p->backend) - start_ns;
    if (reaped || mapping_calls(p) > before + 1)
        time_budget_spend(&p->time_budget, took_ns, new_peak);
    else if (mapping_calls(p) == before + 1)
        time_budget_note_growth(&p->time_budget, took_ns);
    return result;
}
