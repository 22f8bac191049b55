/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See chunk.h.
 */
#include "pool/chunk.h"

#include "pool/job.h"
#include "pool/map.h"
#include "pool/state.h"
#include "pool/tuning.h"

_Atomic uint64_t chunk_away_bytes;

void chunk_enter(struct chunk *c, struct zone *z)
{
    c->zone = z;
    z->chunk_bytes += c->size_bytes;
    list_push_back(&z->chunks, &c->all);
}

void chunk_leave(struct chunk *c)
{
    c->zone->chunk_bytes -= c->size_bytes;
    list_remove(&c->all);
}

struct chunk *chunk_next(const struct pool *p, uint64_t *at, uint64_t end, unsigned *looks)
{
    for (; *looks && *at < end; --*looks) {
        struct chunk *c = map_chunk(*at, p);
        if (c) {
            *at = c->addr + c->size_bytes;
            return c;
        }
        *at =
            map_find(*at) ? *at + GRANULE_BYTES : round_down(*at, MAP_LEAF_BYTES) + MAP_LEAF_BYTES;
    }
    return NULL;
}

void chunk_expose(const struct block *b)
{
    for (uint64_t at = b->addr; at < block_end(b);) {
        struct chunk *c = map_chunk(at, b->zone->pool);
        if (unlikely(!c))
            return;
        c->exposed = true;
        at = c->addr + c->size_bytes;
    }
}

/* The chunk that starts at or after addr; NULL: none in this region. */
static struct chunk *chunk_from(const struct pool *p, uint64_t addr, uint64_t end)
{
    struct chunk *c = addr < end ? map_chunk(addr, p) : NULL;
    if (c && c->addr < addr)
        c = c->addr + c->size_bytes < end ? map_chunk(c->addr + c->size_bytes, p) : NULL;
    return c;
}

struct search {
    struct chunk *list;
    uint64_t want_bytes, got_bytes, unused_ns;
    unsigned count;
    bool move;
    enum chunk_park park; /* only such chunks */
};

static bool eligible(const struct search *s, const struct chunk *c)
{
    return c->park == s->park && c->idle_since_ns <= s->unused_ns &&
           (!s->move || c->size_bytes <= s->want_bytes - s->got_bytes);
}

static bool seize(struct search *s, struct chunk *c, struct block *inside)
{
    struct pool *p = inside->zone->pool;
    if (!host_cache_ensure(&p->block_cache, 2))
        return false;
    c->busy_block = zone_seize(inside, c->addr, c->size_bytes);
    c->in_use_by_gpu = c->busy_block->item.epoch > p->fences.complete_epoch;
    c->plan = s->list;
    s->list = c;
    s->got_bytes += c->size_bytes;
    s->count++;
    return true;
}

static bool wants_more(const struct search *s)
{
    return s->got_bytes < s->want_bytes &&
           (s->move ? s->count < CHUNK_MOVES
                    : s->count < CHUNK_BATCH && s->got_bytes < CHUNK_BATCH_BYTES);
}

/* Seizes eligible chunks within one free block. */
static void seize_within(struct search *s, struct block *b)
{
    const struct pool *p = b->zone->pool;
    struct chunk *c = chunk_from(p, b->addr, block_end(b));
    while (c && c->addr + c->size_bytes <= block_end(b) && wants_more(s)) {
        uint64_t next = c->addr + c->size_bytes;
        if (eligible(s, c)) {
            if (!seize(s, c, b))
                return;
            b = c->busy_block->next;
            if (!b || b->state != BLOCK_FREE)
                return;
        }
        c = chunk_from(p, next, block_end(b));
    }
}

static bool is_idle(const struct block *b, uint64_t complete_epoch)
{
    return (b->state == BLOCK_FREE || b->state == BLOCK_DEAD) && b->item.epoch <= complete_epoch;
}

/* Is the chunk idle, and the work of everything in it complete? Dead memory was retired before it
 * died. */
static bool covered_by_idle(const struct block *b, const struct chunk *c, uint64_t complete_epoch,
                            int *left)
{
    bool idle = is_idle(b, complete_epoch);
    for (const struct block *at = b; idle && at->prev && at->addr > c->addr; (*left)--)
        idle = is_idle(at = at->prev, complete_epoch);
    for (const struct block *at = b; idle && at->next && block_end(at) < c->addr + c->size_bytes;
         (*left)--)
        idle = is_idle(at = at->next, complete_epoch);
    return idle;
}

/* Seizes one chunk that a dead block touches. */
static bool seize_one_dead(struct search *s, struct block *b, uint64_t complete_epoch, int *left)
{
    for (uint64_t at = b->addr; at < block_end(b);) {
        struct chunk *c = map_chunk(at, b->zone->pool);
        if (unlikely(!c))
            return false;
        if (eligible(s, c) && covered_by_idle(b, c, complete_epoch, left) && seize(s, c, b))
            return true;
        at = c->addr + c->size_bytes;
    }
    return false;
}

/* Blocks that were looked at go to the end: the next walk goes on where this one has stopped. */
static void seize_dead(struct search *s, struct zone *z)
{
    uint64_t complete = z->pool->fences.complete_epoch;
    int count = 0, left = CHUNK_LOOK_DEAD;
    for (const struct list *n = z->dead.next; n != &z->dead && count < CHUNK_LOOK_DEAD; n = n->next)
        count++;
    for (; count > 0 && left > 0 && !list_empty(&z->dead) && wants_more(s); count--, left--) {
        struct list *first = z->dead.next;
        list_remove(first);
        list_push_back(&z->dead, first);
        seize_one_dead(s, list_entry(first, struct block, link), complete, &left);
    }
}

/* Seizes eligible chunks within free blocks. */
static void seize_free(struct search *s, struct zone *z, bool may_be_in_use)
{
    uint64_t complete = z->pool->fences.complete_epoch;
    int left = CHUNK_LOOK;
    /* The rest of a block that chunks are taken from holds nothing eligible. No block below a
     * granule holds a chunk. */
    for (struct block *b = placement_largest(&z->placement), *next;
         b && b->size_bytes >= GRANULE_BYTES && wants_more(s) && (!s->move || left-- > 0);
         b = next) {
        next = placement_next(&z->placement, b);
        if (b->item.epoch <= complete || may_be_in_use)
            seize_within(s, b);
    }
}

struct chunk *chunk_seize_idle(struct zone *z, uint64_t want_bytes, uint64_t unused_ns, bool move,
                               uint64_t *got_bytes)
{
    struct search s = {.want_bytes = want_bytes, .unused_ns = unused_ns, .move = move};
    /* Ghosts cost address space only, but not without a limit: a kernel may run for ever. */
    seize_free(&s, z, move && z->pool->ghost_bytes < GHOSTS_MAX * z->pool->backend->total_bytes);
    if (!move)
        seize_dead(&s, z);
    *got_bytes = s.got_bytes;
    return s.list;
}

/* The chunks within free blocks of at least that epoch. */
static uint64_t free_chunk_bytes(struct zone *z, enum chunk_park park, uint64_t least_epoch)
{
    uint64_t bytes = 0;
    for (struct block *b = placement_largest(&z->placement); b && b->size_bytes >= GRANULE_BYTES;
         b = placement_next(&z->placement, b)) {
        struct chunk *c =
            b->item.epoch >= least_epoch ? chunk_from(z->pool, b->addr, block_end(b)) : NULL;
        while (c && c->addr + c->size_bytes <= block_end(b)) {
            bytes += c->park == park ? c->size_bytes : 0;
            c = chunk_from(z->pool, c->addr + c->size_bytes, block_end(b));
        }
    }
    return bytes;
}

uint64_t chunk_behind_work_bytes(struct zone *z)
{
    return free_chunk_bytes(z, CHUNK_HERE, z->pool->fences.complete_epoch + 1);
}

uint64_t chunk_free_away_bytes(struct zone *z)
{
    return free_chunk_bytes(z, CHUNK_AWAY, 0);
}

void chunk_unseize(struct chunk *list)
{
    while (list) {
        struct chunk *c = list;
        list = c->plan;
        zone_give(c->busy_block);
        c->busy_block = NULL;
    }
}

/* The pool disowns a segment right before its call: once the driver has it back, another thread may
 * get the same address. Before that nobody else may say what is there. Once the pool is evicted,
 * all its segments went with their context, and the driver may have given them to others. While the
 * context may be ending the segment stays, because nobody can tell: the context may live on.
 * *waits: no free of the list was in vain so far. */
static struct chunk *release_segment(struct pool *p, struct chunk *c, bool *waits, uint64_t *bytes)
{
    const struct backend_ops *ops = p->backend->ops;
    bool begun = !ops->segment_free_begin || ops->segment_free_begin(p->backend, *waits);
    *waits = *waits && begun;
    state_lock(p);
    bool ours = !p->evicted, may = begun && !atomic_load(&p->backend->gone);
    c->outcome = ours && !may ? CHUNK_STAYED : CHUNK_LOST;
    if (likely(c->outcome == CHUNK_LOST))
        map_disclaim(c, p);
    state_unlock(p);
    if (likely(ours && may))
        ops->segment_free(p->backend, c->addr, !c->in_use_by_gpu);
    if (begun && ops->segment_free_end)
        ops->segment_free_end(p->backend);
    *bytes += c->outcome == CHUNK_LOST ? c->size_bytes : 0;
    return c->plan;
}

/* Unmaps chunks that follow each other in the list and in the address space, upwards or downwards,
 * by one call. One call takes as long as a call for each: 13 us a mapping, or 20 us while the GPU
 * is busy (H200). But it enters the driver once. No launch waits for it, however long it is.
 * Returns the first chunk after them. */
static struct chunk *release_run(struct backend *b, struct chunk *first, bool may_stay,
                                 uint64_t *bytes)
{
    uint64_t start = first->addr, end = start + first->size_bytes;
    struct chunk *after = first->plan;
    for (; after; after = after->plan) {
        if (after->addr == end)
            end += after->size_bytes;
        else if (after->addr + after->size_bytes == start)
            start = after->addr;
        else
            break;
    }
    bool is_mapped = b->ops->unmap(b, start, end - start), stays = is_mapped && may_stay;
    for (struct chunk *c = first; c != after; c = c->plan) {
        c->outcome = stays ? CHUNK_STAYED : CHUNK_LOST;
        c->still_mapped = is_mapped && !stays;
        if (!stays)
            b->ops->release(b, c->handle, c->size_bytes);
    }
    *bytes += stays ? 0 : end - start;
    return after;
}

uint64_t chunk_give_memory(struct backend *b, struct chunk *list, bool may_stay)
{
    uint64_t bytes = 0;
    while (list)
        list = release_run(b, list, may_stay, &bytes);
    return bytes;
}

/* The pool forgets a seized chunk whose memory is gone. */
static void forget(struct pool *p, struct chunk *c)
{
    chunk_leave(c);
    if (p->arena)
        zone_make_hole(c->busy_block);
    else
        zone_drop_region(c->busy_block);
    host_cache_put(&p->chunk_cache, c);
    p->stats.num_device_free++;
}

/* A segment that stays. The dead memory in it is never handed out. Memory that was to go back with
 * its work waits for it now. */
static void put_back(struct pool *p, struct chunk *c)
{
    if (c->in_use_by_gpu)
        c->busy_block->item.epoch = fence_join(p, 0);
    (c->exposed ? zone_bury : zone_give)(c->busy_block);
    c->busy_block = NULL;
}

uint64_t chunk_release(struct pool *p, struct chunk *list)
{
    uint64_t bytes = 0;
    bool waits = true;
    if (!list)
        return 0;
    /* An arena disowns all of them at once, still under the lock. Its addresses are reserved, so
     * the driver gives them to nobody. */
    for (struct chunk *c = list; c && p->arena; c = c->plan)
        map_disclaim(c, p);
    job_begin(p);
    state_unlock(p);
    if (p->arena)
        bytes = chunk_give_memory(p->backend, list, false);
    else
        for (struct chunk *c = list; c;)
            c = release_segment(p, c, &waits, &bytes);
    state_lock(p);
    while (list) {
        struct chunk *c = list;
        list = c->plan;
        if (unlikely(c->outcome == CHUNK_STAYED))
            put_back(p, c);
        else
            forget(p, c);
    }
    p->stats.reserved_bytes -= bytes;
    job_end(p);
    state_job_done(p);
    return bytes;
}

void chunk_count_away(struct pool *p, uint64_t more_bytes, uint64_t less_bytes)
{
    p->stats.away_bytes += more_bytes - less_bytes;
    atomic_store(&p->away_bytes, p->stats.away_bytes);
    atomic_fetch_add(&chunk_away_bytes, more_bytes - less_bytes);
}

void chunk_seize_away(struct pool *p)
{
    struct zone *zones[] = {&p->small, &p->large};
    for (int i = 0; i < 2;) {
        struct search s = {.want_bytes = UINT64_MAX, .unused_ns = UINT64_MAX, .park = CHUNK_AWAY};
        seize_free(&s, zones[i], true);
        if (s.list)
            state_yield(p);
        else
            i++;
    }
}

void chunk_drop(struct pool *p, struct chunk *c)
{
    map_disclaim(c, p);
    list_remove(&c->parked);
    p->stats.reserved_bytes -= c->size_bytes;
    chunk_count_away(p, 0, c->size_bytes);
    forget(p, c);
}

void chunk_release_dead(struct pool *p)
{
    struct zone *zones[] = {&p->large, &p->small};
    if (p->large.dead_bytes + p->small.dead_bytes <
        max_u64(DEAD_BYTES, p->stats.reserved_bytes >> DEAD_SHIFT))
        return;
    for (int i = 0; i < 2; i++) {
        struct search s = {.want_bytes = UINT64_MAX, .unused_ns = UINT64_MAX};
        seize_dead(&s, zones[i]);
        chunk_release(p, s.list);
    }
}

void chunk_add_ghost(struct block *b)
{
    struct pool *p = b->zone->pool;
    b->state = BLOCK_GHOST;
    list_push_back(&p->ghosts, &b->link);
    p->ghost_bytes += b->size_bytes;
}

/* Unmaps ghosts that follow each other in the list and in the address space by one call, see
 * chunk_release. Returns the first node after them. */
static struct list *unmap_run(struct backend *b, struct list *node, const struct list *list)
{
    const struct block *ghost = list_entry(node, struct block, link);
    uint64_t start = ghost->addr, end = block_end(ghost);
    for (node = node->next; node != list; node = node->next) {
        ghost = list_entry(node, struct block, link);
        if (ghost->addr == end)
            end = block_end(ghost);
        else if (block_end(ghost) == start)
            start = ghost->addr;
        else
            break;
    }
    b->ops->unmap(b, start, end - start);
    return node;
}

/* Looks at GHOSTS_AT_ONCE of them. True: some of those went, and there are more. */
static bool reap_some(struct pool *p, bool all)
{
    struct list list;
    int left = GHOSTS_AT_ONCE;
    list_init(&list);
    /* The oldest come first. Behind many whose work is not complete hardly any is complete. */
    list_for_each(n, tmp, &p->ghosts) {
        struct block *b = list_entry(n, struct block, link);
        if (left-- <= 0)
            break;
        if (!all && b->item.epoch > p->fences.complete_epoch)
            continue;
        list_remove(n);
        list_push_back(&list, n);
        b->state = BLOCK_BUSY;
        p->ghost_bytes -= b->size_bytes;
    }
    if (list_empty(&list))
        return false;
    job_begin(p);
    state_unlock(p);
    for (struct list *n = list.next; n != &list;)
        n = unmap_run(p->backend, n, &list);
    state_lock(p);
    job_end(p);
    list_for_each(n, tmp, &list) {
        list_remove(n);
        zone_make_hole(list_entry(n, struct block, link));
    }
    state_job_done(p);
    return left < 0;
}

/* A loop, as threads of programs may have small stacks. */
void chunk_reap_ghosts(struct pool *p, bool all)
{
    while (reap_some(p, all))
        continue;
}
