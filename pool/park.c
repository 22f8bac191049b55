/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Park and wake: see pool_park_hold and what follows it in pool.h. The device memory of whole
 * chunks goes, and comes again at the same addresses. Blocks, slabs and the map know nothing of it:
 * they are host records. The caller moves the bytes.
 *
 *            pool_park_hold        pool_park_end(true)       pool_wake_begin
 *     HERE ─────────────────▶ HELD ──────────────────▶ AWAY ─────────────────▶ BACK
 *       ▲                      │                        ▲ │ if wholly free      │ │
 *       ├──────────────────────┘                        │ └────────────▶ a hole │ │
 *       │  pool_park_end(false)                         └───────────────────────┘ │
 *       │                                                   pool_park_end(true)   │
 *       └─────────────────────────────────────────────────────────────────────────┘
 *                                                           pool_wake_end
 *
 * What the ranges of pool_park_each have to hold: all bytes that the program may read later and
 * that it, or its GPU work, wrote. Let T be a moment after pool_park_hold chose a chunk.
 * 1. The program reads what it holds: live blocks, and live objects of slabs. One that is live at
 *    T and was not handed out since the hold is live all the time. It does not move, and the walk
 *    goes by address. So the walk passes it, whatever is freed, merged or handed out around it.
 * 2. A block handed out since the hold has bytes that the program has not written: nothing was
 *    submitted since. The driver promises nothing of new memory, nor does the pool. So a block that
 *    is freed while held or away needs none of its bytes, and the block in its place needs none.
 *    Bytes of the old block may come back in the new one. They are the program's own.
 * 3. Slabs are named whole, whichever of their objects are live. What lies in a magazine is live to
 *    the pool. So a race with a thread at its magazine names too much, never too little.
 * 4. After pool_wake_begin the walk names what is live by then. What of this was named before the
 *    park is copied back. The rest is new (2).
 *
 * That nothing else reads or writes the memory while it is held or away:
 * 1. No GPU work runs, as the caller sees to. The pool settles, and what was freed before is
 *    complete as far as it knows; else it holds nothing. The work of frees that come later was
 *    submitted before.
 * 2. Nobody outside knows the memory. Exposed memory stays known when it is freed and dead, so its
 *    chunks are marked for ever (chunk_expose), and stay. The caller sees to it that nothing is
 *    exposed meanwhile. If it is all the same while a chunk is held, the chunk stays. One that is
 *    back goes again: its bytes may not be there.
 * 3. No second mapping is left: once the chunks are held no ghost comes of them, and all ghosts go
 *    (no work runs). Else their mappings would keep the memory.
 * 4. The pool moves, releases and seizes only chunks that are HERE (eligible in chunk.c). What a
 *    thread works on at the hold (busy_block) is not held. A window of a growth may cover free
 *    memory of a parked chunk. Growing creates and maps in the holes of its window only.
 * 5. The list `parked` has all chunks that are not HERE, and no others. Only these functions and
 *    pool_abandon take one out. So the caller's walk over it may drop the lock.
 *
 * A chunk that is away and wholly free is not created again. From pool_wake_begin on its addresses
 * are BUSY, and pool_wake_end makes them a hole. No old work can run on what is mapped there later
 * (1). If the wake is taken back, the chunk is away and free as before. So what was named at one
 * address keeps that address until all bytes are back.
 */
#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/map.h"
#include "pool/pool.h"
#include "pool/release.h"
#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

static struct chunk *parked_chunk(const struct list *node)
{
    return list_entry(node, struct chunk, parked);
}

static void let_go(struct chunk *c)
{
    c->park = CHUNK_HERE;
    list_remove(&c->parked);
}

/* Is the work complete of what was freed up to this epoch? */
static bool is_complete(const struct pool *p, uint64_t epoch)
{
    return p->fences.complete_epoch >= min_u64(epoch, p->fences.open_epoch - 1);
}

/* Everything freed so far is free memory, and complete. False: there is nothing to park, or the
 * pool knows of work that goes on. Where no fence could be recorded, the caller's word counts.
 * Drops the lock. */
static bool settle_frees(struct pool *p)
{
    uint64_t epoch =
        p->fences.open_epoch; /* frees of other threads meanwhile may be in later ones */
    release_settle(p, PARK_SETTLE_NS);
    slab_release_empty(p);
    /* Another thread may have its record under way. */
    for (unsigned turn = 0; !is_complete(p, epoch) && turn < FENCE_SUBMIT_TURNS; turn++) {
        state_unlock(p);
        spin_pause(turn);
        state_lock(p);
        release_settle(p, 0);
    }
    return !p->abandoned && !p->fences.lost && is_complete(p, epoch);
}

/* Holds every chunk that may go. Yields the lock. */
static void hold_chunks(struct pool *p)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct list *above = p->parked.next; /* the first that lies above what was looked at */
    for (int i = 0; i < 2; i++)
        for (uint64_t at = zones[i]->base, end = at + zones[i]->size_bytes; at < end;) {
            unsigned looks = RANGE_LOOKS;
            for (struct chunk *c; (c = chunk_next(p, &at, end, &looks));) {
                if (c->park != CHUNK_HERE || c->exposed || c->busy_block)
                    continue;
                while (above != &p->parked && parked_chunk(above)->addr < c->addr)
                    above = above->next;
                c->park = CHUNK_HELD;
                list_push_back(above, &c->parked); /* right below it */
            }
            if (at < end)
                state_yield(p);
            if (p->abandoned)
                return;
        }
}

static uint64_t held_bytes(const struct pool *p)
{
    uint64_t bytes = 0;
    for (const struct list *n = p->parked.next; n != &p->parked; n = n->next)
        bytes += parked_chunk(n)->park == CHUNK_HELD ? parked_chunk(n)->size_bytes : 0;
    return bytes;
}

/* The small zone has the lower addresses. */
static void keep_lowest(struct pool *p, uint64_t keep_bytes)
{
    uint64_t stays = p->stats.reserved_bytes - p->stats.away_bytes - held_bytes(p);
    list_for_each(n, tmp, &p->parked) {
        struct chunk *c = parked_chunk(n);
        if (stays >= keep_bytes)
            return;
        if (c->park == CHUNK_HELD) {
            stays += c->size_bytes;
            let_go(c);
        }
    }
}

/* Lets small chunks go, by powers of two, as long as the rest is enough. */
static void hold_largest(struct pool *p, uint64_t most_bytes)
{
    uint64_t bytes[64] = {0}, spare_bytes = minus_u64(held_bytes(p), most_bytes);
    unsigned size = 0; /* smaller ones go, and some of these */
    for (const struct list *n = p->parked.next; n != &p->parked; n = n->next)
        if (parked_chunk(n)->park == CHUNK_HELD)
            bytes[log2_floor(parked_chunk(n)->size_bytes)] += parked_chunk(n)->size_bytes;
    while (size < 63 && bytes[size] <= spare_bytes)
        spare_bytes -= bytes[size++];
    list_for_each(n, tmp, &p->parked) {
        struct chunk *c = parked_chunk(n);
        unsigned its = log2_floor(c->size_bytes);
        bool some = its == size && c->size_bytes <= spare_bytes;
        if (c->park != CHUNK_HELD || (its >= size && !some))
            continue;
        if (some)
            spare_bytes -= c->size_bytes;
        let_go(c);
    }
}

uint64_t pool_park_hold(struct pool *p, uint64_t keep_bytes, uint64_t most_bytes)
{
    uint64_t held = 0;
    state_enter(p);
    if (p->arena && !p->abandoned && settle_frees(p)) {
        hold_chunks(p);
        keep_lowest(p, keep_bytes);
        if (most_bytes)
            hold_largest(p, most_bytes);
        chunk_reap_ghosts(p, true);
        held = held_bytes(p);
    }
    state_leave(p);
    return held;
}

/* A walk over the live memory of held chunks. */
struct kept {
    const struct list *node; /* of the chunk at which it stands */
    uint64_t at;             /* the granule of it that is next; below it: the first */
    uint64_t start, end;     /* the range that may go on; end 0: none */
    struct pool_range ranges[RANGES_AT_ONCE]; /* they are copied to the stack: see next_ranges */
    unsigned count;
};

/* At most so many more come of one granule: of 2 MiB apart by PARK_GAP_BYTES, and one before. */
#define RANGES_OF_GRANULE (GRANULE_BYTES / PARK_GAP_BYTES + 2)

static void end_range(struct kept *k)
{
    if (k->end)
        k->ranges[k->count++] = (struct pool_range){k->start, k->end - k->start};
    k->end = 0;
}

/* Between held chunks that do not touch lies a granule at least. So no range goes on there. */
_Static_assert(PARK_GAP_BYTES < GRANULE_BYTES, "a range lies on memory that is held");

static void add_range(struct kept *k, uint64_t start, uint64_t end)
{
    if (k->end && start < k->end + PARK_GAP_BYTES) {
        k->end = max_u64(k->end, end);
        return;
    }
    end_range(k);
    k->start = start;
    k->end = end;
}

static void add_starts(struct kept *k, const _Atomic(struct block *) starts[2], uint64_t end)
{
    const struct block *a = starts[0], *b = starts[1];
    bool swap = a && b && a->addr > b->addr;
    const struct block *both[] = {swap ? b : a, swap ? a : b};
    for (int i = 0; i < 2; i++)
        if (both[i])
            add_range(k, both[i]->addr, min_u64(block_end(both[i]), end));
}

/* What is live in one granule: what reaches into it from below, then what starts there. */
static void add_granule(struct pool *p, struct kept *k, uint64_t addr)
{
    const struct granule *g = map_find(addr);
    const struct block *below = map_block_around(addr, p);
    uint64_t end = addr + GRANULE_BYTES;
    if (below)
        add_range(k, addr, min_u64(block_end(below), end));
    for (uint64_t i = 0; g->pages && i < GRANULE_PAGES; i++)
        add_starts(k, g->pages[i].starts, end); /* a slab once for each of its pages */
    add_starts(k, g->starts, end);
}

/* Goes on until there are ranges enough to name. False: the walk is over. */
static bool collect(struct pool *p, struct kept *k)
{
    for (unsigned looks = PARK_LOOKS; looks && k->count + RANGES_OF_GRANULE <= RANGES_AT_ONCE;
         looks--) {
        if (k->node == &p->parked) {
            end_range(k);
            return false;
        }
        const struct chunk *c = parked_chunk(k->node);
        if (c->park == CHUNK_AWAY) {
            k->node = k->node->next;
            continue;
        }
        k->at = max_u64(k->at, c->addr);
        add_granule(p, k, k->at);
        k->at += GRANULE_BYTES;
        if (k->at == c->addr + c->size_bytes)
            k->node = k->node->next;
    }
    return true;
}

bool pool_park_each(struct pool *p, bool (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                    void *arg)
{
    bool more = true, goes_on = true;
    state_enter(p);
    struct kept k = {.node = p->parked.next};
    while (more && goes_on) {
        more = collect(p, &k);
        state_unlock(p);
        for (unsigned i = 0; i < k.count && goes_on; i++)
            goes_on = f(arg, k.ranges[i].addr, k.ranges[i].size_bytes);
        state_lock(p);
        k.count = 0;
        more = more && !p->abandoned;
    }
    state_leave(p);
    return goes_on;
}

/* A wake is taken back. */
static void unseize_free(struct chunk *c)
{
    if (c->busy_block) {
        c->plan = NULL;
        chunk_unseize(c);
    }
}

/* Those that the driver did not unmap are here, with their bytes. Returns their bytes. */
static uint64_t let_stay(struct pool *p, struct chunk *list)
{
    uint64_t bytes = 0;
    for (struct chunk *c = list; c; c = c->plan)
        if (c->outcome == CHUNK_STAYED) {
            bytes += c->size_bytes;
            let_go(c);
        }
    chunk_count_away(p, 0, bytes);
    return bytes;
}

/* Chunks count as away before they are unmapped: who asks about an address must not learn that it
 * is there when it may be gone (pool_is_away). */
uint64_t pool_park_end(struct pool *p, bool away)
{
    struct chunk *list = NULL, **tail = &list;
    uint64_t bytes = 0;
    bool has_bytes = true; /* the device memory, so it may stay */
    state_enter(p);
    job_begin(p); /* first: a walk passes what is away, and it may stay */
    list_for_each(n, tmp, &p->parked) {
        struct chunk *c = parked_chunk(n);
        has_bytes = has_bytes && c->park != CHUNK_BACK;
        if (c->park == CHUNK_AWAY) {
            unseize_free(c);
            continue;
        }
        if (!away || unlikely(c->park == CHUNK_HELD && c->exposed)) {
            let_go(c);
            continue;
        }
        c->park = CHUNK_AWAY;
        bytes += c->size_bytes;
        c->plan = NULL;
        *tail = c;
        tail = &c->plan;
    }
    if (list) {
        chunk_count_away(p, bytes, 0);
        state_unlock(p);
        chunk_give_memory(p->backend, list, has_bytes);
        state_lock(p);
        bytes -= let_stay(p, list);
    }
    job_end(p);
    state_job_done(p);
    state_leave(p);
    return bytes;
}

/* An unmap may have failed with an error of other work and done its own: then the next one fails,
 * and the mapping says what is there. */
static int map_away(struct backend *b, struct chunk *c)
{
    if (unlikely(c->still_mapped))
        b->ops->unmap(b, c->addr, c->size_bytes);
    int code = b->ops->map(b, c->addr, c->size_bytes, c->handle);
    c->still_mapped = c->still_mapped && code;
    return code;
}

/* The driver's part of a wake, without the lock. All or nothing: memory is created for all chunks
 * before any is mapped, because that is what fails. Access is granted as in arena.c. */
static int bring_back(struct backend *b, struct chunk *list)
{
    struct chunk *uncreated = list, *unmapped = list;
    int code = 0;
    while (uncreated && !(code = b->ops->create(b, uncreated->size_bytes, &uncreated->handle)))
        uncreated = uncreated->plan;
    while (!code && unmapped) {
        code = map_away(b, unmapped);
        unmapped = code ? unmapped : unmapped->plan;
    }
    for (struct chunk *c = list; !code && c;) {
        uint64_t start = c->addr, end = start;
        for (; c && c->addr == end; c = c->plan)
            end += c->size_bytes;
        code = b->ops->allow(b, start, end - start);
    }
    for (struct chunk *c = list; code && c != unmapped; c = c->plan)
        c->still_mapped = b->ops->unmap(b, c->addr, c->size_bytes) != 0;
    for (struct chunk *c = list; code && c != uncreated; c = c->plan)
        b->ops->release(b, c->handle, c->size_bytes);
    return code;
}

/* Those that are to be created. */
static struct chunk *list_away(struct pool *p)
{
    struct chunk *list = NULL, **tail = &list;
    for (const struct list *n = p->parked.next; n != &p->parked; n = n->next) {
        struct chunk *c = parked_chunk(n);
        if (c->park == CHUNK_AWAY && !c->busy_block) {
            c->plan = NULL;
            *tail = c;
            tail = &c->plan;
        }
    }
    return list;
}

int pool_wake_begin(struct pool *p)
{
    int code = 0;
    state_enter(p);
    if (p->stats.away_bytes && !p->abandoned) {
        settle_frees(p);
        chunk_seize_away(p);
    }
    struct chunk *list = list_away(p);
    if (list) {
        job_begin(p);
        state_unlock(p);
        code = bring_back(p->backend, list);
        state_lock(p);
        job_end(p);
        for (struct chunk *c = list; c && !code; c = c->plan) {
            c->park = CHUNK_BACK;
            chunk_count_away(p, 0, c->size_bytes);
        }
        state_job_done(p);
    }
    for (const struct list *n = p->parked.next; code && n != &p->parked; n = n->next)
        unseize_free(parked_chunk(n));
    state_leave(p);
    return code;
}

void pool_wake_end(struct pool *p)
{
    state_lock(p);
    list_for_each(n, tmp, &p->parked) {
        struct chunk *c = parked_chunk(n);
        if (c->park == CHUNK_BACK)
            let_go(c);
        else if (c->busy_block)
            chunk_drop(p, c);
    }
    state_unlock(p);
}

uint64_t pool_wake_bytes(struct pool *p)
{
    uint64_t bytes = 0;
    state_enter(p);
    if (p->stats.away_bytes && !p->abandoned) {
        settle_frees(p);
        bytes = p->stats.away_bytes;
        bytes -= chunk_free_away_bytes(&p->small) + chunk_free_away_bytes(&p->large);
    }
    state_leave(p);
    return bytes;
}

uint64_t pool_away_bytes(const struct pool *p)
{
    return atomic_load(&p->away_bytes);
}

uint64_t pool_exposed_bytes(struct pool *p)
{
    struct zone *zones[] = {&p->small, &p->large};
    uint64_t bytes = 0;
    state_lock(p);
    for (int i = 0; i < 2 && !p->abandoned; i++)
        list_for_each(n, tmp, &zones[i]->chunks) {
            const struct chunk *c = list_entry(n, struct chunk, all);
            bytes += c->exposed ? c->size_bytes : 0;
        }
    state_unlock(p);
    return bytes;
}
