/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See slab.h.
 */
#include "pool/slab.h"

#include "pool/map.h"
#include "pool/state.h"

void slab_init(struct slabs *s)
{
    for (int c = 0; c < SLAB_CLASSES; c++)
        for (int f = 0; f < SLAB_FULLNESS; f++)
            list_init(&s->partial[c][f]);
    s->empty_count = 0;
}

uint64_t slab_object_bytes(unsigned c)
{
    uint64_t units = c < 16 ? c + 1 : c < 24 ? 16 + (c - 15) * 2 : 32 + (c - 23) * 4;
    return units << UNIT_SHIFT;
}

uint64_t slab_block_bytes(unsigned c)
{
    uint64_t object = slab_object_bytes(c);
    return SLAB_PAGE_BYTES * (object <= 2048 ? 1 : object <= 8192 ? 2 : 4);
}

static bool is_empty(const struct slab *s)
{
    return s->free_count == s->object_count;
}

/* Called whenever free_count changed. */
static void relink(struct pool *p, struct slab *s)
{
    list_remove(&s->link);
    if (!s->free_count)
        return;
    unsigned fullness = (unsigned)(s->free_count - 1) * SLAB_FULLNESS / s->object_count;
    list_push_front(&p->slabs.partial[s->class_index][fullness], &s->link);
}

static bool bucket_changes(const struct slab *s, unsigned before)
{
    return !before || !s->free_count ||
           (before - 1) * SLAB_FULLNESS / s->object_count !=
               (unsigned)(s->free_count - 1) * SLAB_FULLNESS / s->object_count;
}

struct slab *slab_take(struct pool *p, unsigned class_index, unsigned *slot)
{
    for (int f = 0; f < SLAB_FULLNESS; f++) {
        struct list *head = &p->slabs.partial[class_index][f];
        if (list_empty(head))
            continue;
        struct slab *s = list_entry(head->next, struct slab, link);
        unsigned word = s->free_map[0] ? 0 : 1, before = s->free_count;
        *slot = word * 64 + (unsigned)__builtin_ctzll(s->free_map[word]);
        s->free_map[word] &= s->free_map[word] - 1;
        if (is_empty(s))
            p->slabs.empty_count--;
        s->free_count--;
        if (bucket_changes(s, before))
            relink(p, s);
        return s;
    }
    return NULL;
}

bool slab_add(struct pool *p, struct block *b, unsigned class_index)
{
    struct slab *s = host_cache_get(&p->slab_cache);
    if (!s)
        return false;
    s->block = b;
    s->class_index = (uint16_t)class_index;
    s->object_bytes = slab_object_bytes(class_index);
    uint64_t units = s->object_bytes >> UNIT_SHIFT;
    s->reciprocal = (uint32_t)(((UINT64_C(1) << 16) + units - 1) / units);
    uint64_t count = min_u64(b->size_bytes / s->object_bytes, SLAB_OBJECTS_MAX);
    s->object_count = s->free_count = (uint16_t)count;
    s->epoch = b->epoch;
    for (unsigned i = 0; i < SLAB_OBJECTS_MAX / 64; i++) {
        uint64_t here = count > 64 * i ? min_u64(count - 64 * i, 64) : 0;
        s->free_map[i] = here == 64 ? UINT64_MAX : (UINT64_C(1) << here) - 1;
    }
    slab_show(s);
    atomic_store_explicit(&b->slab, s, memory_order_release);
    if (!map_set(b)) {
        host_cache_put(&p->slab_cache, s);
        return false;
    }
    list_init(&s->link);
    p->slabs.empty_count++;
    relink(p, s);
    return true;
}

static void destroy(struct pool *p, struct slab *s)
{
    struct block *b = s->block;
    list_remove(&s->link);
    p->slabs.empty_count--;
    map_clear(b);
    b->epoch = s->epoch;
    host_cache_put(&p->slab_cache, s);
    zone_give(b);
}

/* The slab's block goes back to the driver with its chunk, as a shared block does. */
static void bury(struct pool *p, struct slab *s)
{
    struct block *b = s->block;
    list_remove(&s->link);
    map_clear(b);
    b->epoch = s->epoch;
    host_cache_put(&p->slab_cache, s);
    zone_bury(b);
}

static bool is_done(const struct slab *s)
{
    return s->dead_count && s->free_count + s->dead_count == s->object_count;
}

void slab_give(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch)
{
    s->epoch = max_u64(s->epoch, epoch);
    if (unlikely(s->objects[slot].tainted)) {
        s->dead_count++;
        if (is_done(s))
            bury(p, s);
        return;
    }
    unsigned before = s->free_count++;
    s->free_map[slot / 64] |= UINT64_C(1) << (slot % 64);
    if (is_empty(s))
        p->slabs.empty_count++;
    if (bucket_changes(s, before))
        relink(p, s);
    if (unlikely(is_done(s))) {
        bury(p, s);
        return;
    }
    /* The last slab of a size stays, so that a loop with one object does not make and unmake it. */
    if (is_empty(s)) {
        struct list *head = &p->slabs.partial[s->class_index][SLAB_FULLNESS - 1];
        if (head->next != head->prev)
            destroy(p, s);
    }
}

bool slab_release_empty(struct pool *p)
{
    unsigned before = p->slabs.empty_count;
    for (int c = 0; c < SLAB_CLASSES; c++)
        list_for_each(n, tmp, &p->slabs.partial[c][SLAB_FULLNESS - 1])
        {
            struct slab *s = list_entry(n, struct slab, link);
            if (is_empty(s))
                destroy(p, s);
        }
    return p->slabs.empty_count != before;
}

struct slab *slab_of(struct pending *item)
{
    struct slab_object *o = list_entry(item, struct slab_object, pending);
    return list_entry(o - item->slot, struct slab, objects);
}
