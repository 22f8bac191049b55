/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See pending.h.
 */
#include "pool/pending.h"

#include "pool/segment.h"
#include "pool/state.h"
#include "pool/tuning.h"

void pending_init(struct pendings *q)
{
    *q = (struct pendings){.tail = &q->head};
}

/* The queue is in the order of epochs. An item that comes late, out of a magazine, finds its place
 * within a bounded look, or waits a little longer. */
static struct item **place_for(struct pendings *q, uint64_t epoch)
{
    struct item **at = &q->head;
    if (!q->head || epoch >= q->newest_epoch)
        return q->tail;
    for (int left = PENDING_LOOK; left > 0; left--) {
        if ((*at)->epoch > epoch)
            return at;
        at = &(*at)->next;
    }
    return q->tail;
}

static void queue_item(struct pool *p, struct item *item, struct zone *z, uint64_t size_bytes,
                       uint64_t epoch)
{
    struct pendings *q = &p->pendings;
    struct item **at = place_for(q, epoch);
    item->epoch = epoch;
    if (at == q->tail) {
        item->epoch = q->newest_epoch = q->head ? max_u64(epoch, q->newest_epoch) : epoch;
        q->tail = &item->next;
        item->next = NULL;
    } else {
        item->next = *at;
    }
    *at = item;
    z->pending_bytes += size_bytes;
    stats_raise(&p->stats.pending_bytes, size_bytes);
}

static bool is_ready(struct pool *p, uint64_t epoch)
{
    return epoch <= atomic_load_explicit(&p->fences.ready, memory_order_relaxed);
}

void pending_settle_block(struct pool *p, struct block *b, uint64_t epoch)
{
    if (is_ready(p, epoch) && !b->item.exposed) {
        b->item.epoch = epoch;
        zone_give(b);
    } else {
        b->state = BLOCK_PENDING;
        b->item.slot = PENDING_BLOCK;
        queue_item(p, &b->item, b->zone, b->size_bytes, epoch);
    }
}

void pending_settle_object(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch)
{
    if (is_ready(p, epoch)) {
        slab_give(p, s, slot, epoch);
    } else {
        s->items[slot].slot = (uint16_t)slot;
        s->items[slot].slab = s;
        queue_item(p, &s->items[slot], &p->small, s->object_bytes, epoch);
    }
}

static struct block *block_of(struct item *item)
{
    return list_entry(item, struct block, item);
}

bool pending_retire(struct pool *p)
{
    struct pendings *q = &p->pendings;
    int left = PENDING_BATCH;
    for (; left > 0 && q->head && is_ready(p, q->head->epoch); left--) {
        struct item *item = q->head;
        q->head = item->next;
        if (!q->head)
            q->tail = &q->head;
        uint64_t size_bytes;
        struct zone *z = &p->small;
        if (item->slot == PENDING_BLOCK) {
            struct block *b = block_of(item);
            size_bytes = b->size_bytes;
            z = b->zone;
            if (b->item.exposed)
                zone_bury(b);
            else
                zone_give(b);
        } else {
            struct slab *s = item->slab;
            size_bytes = s->object_bytes;
            slab_give(p, s, item->slot, item->epoch);
        }
        z->pending_bytes -= size_bytes;
        p->stats.pending_bytes -= size_bytes;
    }
    return left < PENDING_BATCH;
}

bool pending_retire_all(struct pool *p)
{
    bool any = false;
    while (pending_retire(p)) {
        any = true;
        state_yield(p);
    }
    return any;
}

uint64_t pending_find(const struct pool *p, const struct zone *z, uint64_t size_bytes)
{
    int left = PENDING_LOOK;
    for (struct item *item = p->pendings.head; item && left > 0; item = item->next, left--) {
        if (item->slot != PENDING_BLOCK) {
            if (z->kind == ZONE_SMALL && item->slab->object_bytes == size_bytes)
                return item->epoch;
            continue;
        }
        const struct block *b = block_of(item);
        bool whole = z->kind == ZONE_LARGE && !p->arena;
        if (b->zone == z && !b->item.exposed && b->size_bytes >= size_bytes &&
            (!whole || segment_fits(b->size_bytes, size_bytes)))
            return item->epoch;
    }
    return 0;
}

uint64_t pending_run_ahead_bytes(const struct pool *p)
{
    uint64_t peak = p->stats.allocated_peak_bytes;
    uint64_t small = max_u64(peak >> RUN_AHEAD_SMALL_SHIFT, RUN_AHEAD_MIN_BYTES);
    return max_u64(min_u64(small, RUN_AHEAD_BYTES), p->stats.allocated_bytes >> RUN_AHEAD_SHIFT);
}

bool pending_is_much(const struct pool *p, struct zone *z, uint64_t size_bytes)
{
    z->looked_bytes = min_u64(z->looked_bytes, z->pending_bytes);
    return z->pending_bytes >= size_bytes &&
           z->pending_bytes - z->looked_bytes >= p->stats.reserved_bytes >> PENDING_LOOK_SHIFT;
}

void pending_look(struct pool *p, struct zone *z, uint64_t size_bytes, bool order)
{
    if (!zone_would_cut(z, size_bytes))
        return;
    z->looked_bytes = z->pending_bytes; /* so that no second thread does the same meanwhile */
    fence_seal(p);
    if (fence_poll(p))
        pending_retire(p);
    if (order && z->pending_bytes >= size_bytes &&
        fence_order(p, fence_newest_waitable(&p->fences), false))
        pending_retire(p);
    z->looked_bytes = z->pending_bytes;
}

bool pending_may_ask(struct pool *p)
{
    struct pendings *q = &p->pendings;
    if (!fence_is_running(&p->fences) || q->passed++ < q->ask_after)
        return false;
    q->passed = 0;
    q->ask_after = min_u64(2 * q->ask_after + 1, PENDING_SELDOM);
    return true;
}

void pending_ask_soon(struct pool *p)
{
    p->pendings.ask_after = 0;
}
