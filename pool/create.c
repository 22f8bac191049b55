/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The beginning of a pool, for its first context and for a later one: see pool_create and
 * pool_revive in pool.h. Its end is in abandon.c.
 */
#include "pool/arena.h"
#include "pool/chunk.h"
#include "pool/limits.h"
#include "pool/magazine.h"
#include "pool/magazine_pool.h"
#include "pool/peak.h"
#include "pool/segment.h"
#include "pool/single_stream.h"
#include "pool/state.h"

/* Reserves the address space of an arena, if the pool is to be one. */
static bool reserve(struct pool *p)
{
    return p->config.backing != BACKING_SEGMENT && p->backend->has_arena && arena_reserve(p);
}

static void preallocate(struct pool *p)
{
    int code;
    if (!p->config.prealloc_bytes || p->config.prealloc_bytes > p->backend->total_bytes)
        return;
    state_enter(p);
    if (p->arena)
        arena_grow(p, &p->large, round_up(p->config.prealloc_bytes, GRANULE_BYTES), 1, &code);
    else
        segment_grow(p, &p->large, p->config.prealloc_bytes, &code);
    peak_record(p, &p->large, 0, 0);
    state_leave(p);
}

/* Empty: no memory, no frees. */
static void init_contents(struct pool *p)
{
    p->now_ns = p->backend->ops->now_ns(p->backend);
    p->small_max_bytes = SMALL_MAX_BYTES;
    p->planned_bytes = p->ghost_bytes = p->released_ns = p->release_beyond_shift = 0;
    p->time_budget = (struct time_budget){0};
    p->most_reserved_bytes = p->config.max_reserved_bytes;
    limits_set_tick(p);
    list_init(&p->ghosts);
    list_init(&p->parked);
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
    p->config = *config;
    p->owner = owner;
    p->serial = magazines_serials();
    state_init_lock(p);
    host_cache_init(&p->block_cache, sizeof(struct block), offsetof(struct block, item));
    host_cache_init(&p->chunk_cache, sizeof(struct chunk), sizeof(struct chunk));
    slab_init_caches(p->slab_caches);
    host_cache_init(&p->magazine_cache, sizeof(struct magazine),
                    offsetof(struct magazine, last_serial));
    list_init(&p->magazines);
    init_contents(p);
    p->begin_ns = p->now_ns;
    fence_init(&p->fences);
    single_stream_init(&p->fences, b->single_stream);
    p->arena = reserve(p);
    preallocate(p);
    return p;
}

/* What a limit asks for happens in the next pool_tick. While there was room, fences may have been
 * late. From here on each record looks at the room anew. */
void pool_set_config(struct pool *p, const struct pool_config *config)
{
    state_lock(p);
    p->now_ns = p->backend->ops->now_ns(p->backend);
    if (!p->config.idle_timeout_ns)
        p->stamped_since_ns = p->now_ns;
#define LIVE NULL
#define POOL_OPTION(field, name, type, value, live, help)                                          \
    if ((const char *)(live) == NULL)                                                              \
        p->config.field = config->field;
#include "pool/config.def"
#undef POOL_OPTION
#undef LIVE
    atomic_store(&p->fences.patience_bytes, 0);
    limits_set_tick(p);
    state_unlock(p);
}

void pool_lose(struct pool *p)
{
    state_lock(p);
    if (!p->fences.lost)
        fence_lose(p);
    magazines_pass_all(p); /* returns when threads that looked into a magazine before are through */
    state_unlock(p);
}

/* No other thread changes an abandoned pool, but for frees that come late (abandon.c); they find
 * nothing. */
bool pool_revive(struct pool *p)
{
    state_lock(p);
    bool vacant = p->abandoned && !p->holds_memory && !p->threads_inside && !p->unlocked_jobs;
    p->threads_inside += vacant; /* by this thread */
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
    fence_restart(&p->fences);
    single_stream_init(&p->fences, p->backend->single_stream);
    p->abandoned = p->evicted = false;
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
