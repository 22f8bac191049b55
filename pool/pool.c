/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See pool.h: the beginning of a pool, its frees, streams and numbers. Requests are request.c's matter.
 */
#include "pool/pool.h"

#include "pool/arena.h"
#include "pool/chunk.h"
#include "pool/find.h"
#include "pool/magazine.h"
#include "pool/map.h"
#include "pool/rack.h"
#include "pool/segment.h"
#include "pool/sole.h"
#include "pool/state.h"

/* The clock is read again after so many frees at the latest, if nothing else reads it. */
#define CLOCK_EVERY 1024

static _Atomic uint64_t serials_drawn;

uint64_t state_serials(void)
{
    return (atomic_fetch_add(&serials_drawn, 1) + 1) << SERIALS_SHIFT;
}

/* The address space of an arena, if it is to be one. */
static bool reserve(struct pool *p)
{
    return p->config->backing != BACKING_SEGMENT && p->backend->has_arena && arena_reserve(p);
}

static void preallocate(struct pool *p)
{
    int code;
    if (!p->config->prealloc_bytes || p->config->prealloc_bytes > p->backend->total_bytes)
        return;
    state_enter(p);
    if (p->arena)
        arena_grow(p, &p->large, round_up(p->config->prealloc_bytes, GRANULE_BYTES), 1, &code);
    else
        segment_grow(p, &p->large, p->config->prealloc_bytes, &code);
    state_leave(p);
}

/* Nothing in it, and nothing freed. */
static void init_contents(struct pool *p)
{
    p->now_ns = p->backend->ops->now_ns(p->backend);
    p->small_max_bytes = SMALL_MAX_BYTES;
    p->planned_bytes = p->ghost_bytes = p->unpaid_epoch = p->stuck_epoch = p->released_ns = 0;
    p->awaited = p->look_after = p->owes_beyond_shift = 0;
    p->effort = (struct effort){0};
    list_init(&p->ghosts);
    zone_init(&p->small, p, ZONE_SMALL);
    zone_init(&p->large, p, ZONE_LARGE);
    slab_init(&p->slabs);
    pending_init(&p->pendings);
}

struct pool *pool_create(struct backend *b, const struct pool_config *config, void *owner)
{
    struct pool *p = host_pages(sizeof *p);
    if (!p)
        return NULL;
    p->backend = b;
    p->config = config;
    p->owner = owner;
    p->serial = state_serials();
    state_init_lock(p);
    pthread_cond_init(&p->changed, NULL);
    host_cache_init(&p->block_cache, sizeof(struct block), offsetof(struct block, piece));
    host_cache_init(&p->chunk_cache, sizeof(struct chunk), sizeof(struct chunk));
    slab_init_caches(p->slab_caches);
    host_cache_init(&p->magazine_cache, sizeof(struct magazine), offsetof(struct magazine, last_serial));
    list_init(&p->magazines);
    init_contents(p);
    fence_init(&p->fences, b->single_stream);
    p->arena = reserve(p);
    preallocate(p);
    return p;
}

void pool_lose(struct pool *p)
{
    state_lock(p);
    if (!p->fences.lost)
        fence_lose(p);
    rack_pass_all(p); /* who looked into a magazine before that is through */
    state_unlock(p);
}

/* Who comes after the abandonment finds a lost pool without an event, and asks the backend for
 * nothing but the time. */
bool pool_is_vacant(struct pool *p)
{
    state_lock(p);
    bool vacant = p->abandoned && !p->inside && !p->busy;
    state_unlock(p);
    return vacant;
}

/* Nobody else changes an abandoned pool, but for what comes late (abandon.c); and it finds
 * nothing. */
bool pool_revive(struct pool *p)
{
    state_lock(p);
    bool vacant = p->abandoned && !p->inside && !p->busy;
    p->inside += vacant; /* by this thread */
    if (vacant) {
        host_cache_reclaim(&p->block_cache);
        host_cache_reclaim(&p->chunk_cache);
        for (unsigned c = 0; c < SLAB_CLASSES; c++)
            host_cache_reclaim(&p->slab_caches[c]);
        init_contents(p);
    }
    state_unlock(p);
    if (!vacant)
        return false;
    bool arena = reserve(p);
    state_lock(p);
    p->arena = arena;
    fence_restart(&p->fences, p->backend->single_stream);
    p->abandoned = false;
    state_leave(p);
    preallocate(p);
    return true;
}

void *pool_owner(const struct pool *p)
{
    return p->owner;
}

bool pool_uses_arena(const struct pool *p)
{
    return p->arena;
}

enum pool_status pool_alloc(struct pool *p, uint64_t size_bytes, uint64_t *addr, int *code)
{
    uint64_t taken = pool_take(p, size_bytes);
    if (!taken)
        return pool_alloc_slowly(p, size_bytes, addr, code);
    *addr = taken;
    return POOL_OK;
}

/* A tainted segment's block goes back at once: cuMemFree waits for the work itself. */
static void free_block(struct pool *p, struct block *b)
{
    map_clear(b);
    segment_end(p, b);
    p->stats.allocated_bytes -= b->size_bytes;
    p->stats.requested_bytes -= b->piece.requested_bytes;
    if (unlikely(b->piece.tainted)) {
        p->stats.num_tainted++;
        if (!p->arena && b->zone->kind == ZONE_LARGE) {
            struct chunk *c = map_find(b->addr)->chunk;
            b->state = BLOCK_BUSY;
            c->cover = b;
            c->plan = NULL;
            c->lingers = true;
            chunk_release(p, c);
            return;
        }
    }
    pending_settle_block(p, b, fence_join(p, b->size_bytes));
}

static void free_object(struct pool *p, struct slab *s, unsigned slot)
{
    struct piece *o = &s->pieces[slot];
    o->live = false;
    p->stats.allocated_bytes -= s->object_bytes;
    p->stats.requested_bytes -= o->requested_bytes;
    p->stats.num_tainted += o->tainted;
    pending_settle_object(p, s, slot, fence_join(p, s->object_bytes));
}

/* Waits as cudaFree does, for programs that lean on it. Before the free: the block is still live. */
static void sync_before_free(struct pool *p)
{
    fence_join(p, 0);
    fence_wait(p, p->fences.open_epoch, false, UINT64_MAX);
}

enum pool_status pool_free_slowly(uint64_t addr)
{
    struct granule *g;
    struct pool *p = find_owner(addr, &g);
    if (!p)
        return POOL_FOREIGN;
    p->inside++;
    if (unlikely(p->config->sync_free))
        sync_before_free(p);
    enum pool_status status = POOL_INVALID;
    /* Meanwhile the context may have ended, or another free been first: the address may be another pool's. */
    bool owned = atomic_load_explicit(&g->pool, memory_order_relaxed) == p;
    struct block *b = likely(owned) ? map_block(g, addr) : NULL;
    if (b && b->state == BLOCK_LIVE && piece_claim(&b->piece)) {
        free_block(p, b);
        status = POOL_OK;
    } else if (b && b->state == BLOCK_SLAB) {
        struct slab *s = block_slab(b);
        int slot = slab_slot_around(s, addr);
        if (slot >= 0 && s->pieces[slot].live && slab_object_addr(s, (unsigned)slot) == addr &&
            piece_claim(&s->pieces[slot])) {
            free_object(p, s, (unsigned)slot);
            status = POOL_OK;
        }
    }
    rack_ensure(p);
    if (status == POOL_OK) {
        p->stats.live_blocks--;
        if (++p->stats.num_frees % CLOCK_EVERY == 0)
            p->now_ns = p->backend->ops->now_ns(p->backend);
    }
    state_leave(p);
    return status;
}

enum pool_status pool_free(uint64_t addr)
{
    return pool_give(addr) ? POOL_OK : pool_free_slowly(addr);
}

void pool_submit(struct pool *p, uint64_t stream)
{
    if (fence_pass(&p->fences, stream))
        return;
    state_enter(p);
    fence_submit(p);
    state_leave(p);
}

bool pool_leave_single_stream(struct pool *p)
{
    state_enter(p);
    bool waited = sole_leave(p);
    state_leave(p);
    return waited;
}

void pool_seal(struct pool *p)
{
    state_enter(p);
    if (!p->abandoned)
        fence_seal(p);
    state_leave(p);
}

uint64_t pool_mark(struct pool *p)
{
    return atomic_load(&p->fences.open_epoch);
}

bool pool_passed(struct pool *p, uint64_t mark)
{
    state_enter(p);
    struct fences *f = &p->fences;
    if (f->complete_epoch < mark || f->complete_epoch < f->late_epoch) /* see sole_enter */
        fence_poll(p);
    bool passed = f->complete_epoch >= mark;
    state_leave(p);
    return passed;
}

bool pool_enter_single_stream(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach)
{
    state_enter(p);
    bool entered = sole_enter(p, mark, stream, breach);
    state_leave(p);
    return entered;
}

bool pool_is_idle(struct pool *p)
{
    state_enter(p);
    bool idle = !p->backend->has_order || fence_is_idle(p);
    state_leave(p);
    return idle;
}

void pool_give_up_single_stream(struct pool *p)
{
    state_enter(p);
    sole_leave(p);
    sole_unwatch(p);
    state_leave(p);
}

void pool_stats(struct pool *p, struct pool_stats *stats)
{
    state_lock(p);
    rack_tell_all(p);
    *stats = p->stats;
    state_unlock(p);
}

uint64_t pool_idle_bytes(struct pool *p)
{
    state_lock(p);
    rack_tell_all(p);
    uint64_t idle = p->stats.reserved_bytes - p->stats.allocated_bytes;
    state_unlock(p);
    return idle;
}

/* So many at a time: on the stack, because host memory may be short, and no longer under the lock.
 */
#define RANGES 64
#define RANGE_LOOKS 4096

struct range {
    uint64_t addr, size_bytes;
};

/* The next chunks from *at on. */
static unsigned next_ranges(uint64_t *at, uint64_t end, struct range ranges[RANGES])
{
    unsigned count = 0;
    for (unsigned looks = 0; looks < RANGE_LOOKS && count < RANGES && *at < end; looks++) {
        const struct granule *g = map_find(*at);
        if (g && g->chunk) {
            ranges[count++] = (struct range){g->chunk->addr, g->chunk->size_bytes};
            *at = g->chunk->addr + g->chunk->size_bytes;
        } else {
            *at = g ? *at + GRANULE_BYTES : round_down(*at, MAP_LEAF_BYTES) + MAP_LEAF_BYTES;
        }
    }
    return count;
}

void pool_for_each_range(struct pool *p, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                         void *arg)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct range ranges[RANGES];
    state_lock(p);
    if (p->abandoned) { /* and perhaps being revived, which reserves its zones without the lock */
        state_unlock(p);
        return;
    }
    p->busy++;
    /* Chunks under way, or behind this walk, are mapped with the rights that the backend knows by
     * then. */
    for (int i = 0; i < 2; i++) {
        uint64_t end = zones[i]->base + zones[i]->size_bytes;
        for (uint64_t at = zones[i]->base; at < end;) {
            unsigned count = next_ranges(&at, end, ranges);
            state_unlock(p);
            for (unsigned k = 0; k < count; k++)
                f(arg, ranges[k].addr, ranges[k].size_bytes);
            state_lock(p);
        }
    }
    p->busy--;
    state_broadcast(p);
    state_unlock(p);
}
