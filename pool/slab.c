/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See slab.h.
 */
#include "pool/slab.h"

#include "pool/map.h"
#include "pool/state.h"
#include "pool/tuning.h"

void slab_init(struct slabs *s)
{
    for (int c = 0; c < SLAB_CLASSES; c++) {
        list_init(&s->partial[c]);
        list_init(&s->empty[c]);
    }
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

/* The list of slabs with so many free objects; NULL: none. */
static struct list *list_of(struct pool *p, const struct slab *s, unsigned free_count)
{
    if (free_count == s->object_count)
        return &p->slabs.empty[s->class_index];
    return free_count ? &p->slabs.partial[s->class_index] : NULL;
}

/* Called whenever free_count changed. */
static void relink(struct pool *p, struct slab *s, unsigned before)
{
    struct list *now = list_of(p, s, s->free_count);
    if (now == list_of(p, s, before))
        return;
    list_remove(&s->link);
    if (now)
        list_push_front(now, &s->link);
}

struct slab *slab_take(struct pool *p, unsigned class_index, unsigned *slot)
{
    const struct list *head = &p->slabs.partial[class_index];
    if (list_empty(head))
        head = &p->slabs.empty[class_index];
    if (list_empty(head))
        return NULL;
    struct slab *s = list_entry(head->next, struct slab, link);
    unsigned word = s->free_map[0] ? 0 : 1, before = s->free_count;
    *slot = word * 64 + (unsigned)__builtin_ctzll(s->free_map[word]);
    s->free_map[word] &= s->free_map[word] - 1;
    s->free_count--;
    relink(p, s, before);
    return s;
}

static uint64_t object_count(uint64_t block_bytes, unsigned class_index)
{
    return min_u64(block_bytes / slab_object_bytes(class_index), SLAB_OBJECTS_MAX);
}

void slab_init_caches(struct host_cache caches[SLAB_CLASSES])
{
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        size_t items_bytes = object_count(slab_block_bytes(c), c) * sizeof(struct item);
        host_cache_init(&caches[c], offsetof(struct slab, items) + items_bytes,
                        offsetof(struct slab, shape));
    }
}

bool slab_add(struct pool *p, struct block *b, unsigned class_index)
{
    struct slab *s = host_cache_get(&p->slab_caches[class_index]);
    if (!s)
        return false;
    s->block = b;
    s->class_index = (uint8_t)class_index;
    s->object_bytes = (uint32_t)slab_object_bytes(class_index);
    uint64_t count = object_count(b->size_bytes, class_index);
    s->object_count = s->free_count = (uint8_t)count;
    s->epoch = b->item.epoch;
    for (unsigned i = 0; i < SLAB_OBJECTS_MAX / 64; i++) {
        uint64_t here = count > 64ul * i ? min_u64(count - 64ul * i, 64) : 0;
        s->free_map[i] = here == 64 ? UINT64_MAX : (UINT64_C(1) << here) - 1;
    }
    slab_show(s);
    atomic_store_explicit(&b->item.slab, s, memory_order_release);
    map_set(b);
    list_init(&s->link);
    relink(p, s, 0);
    return true;
}

static void destroy(struct pool *p, struct slab *s)
{
    struct block *b = s->block;
    list_remove(&s->link);
    map_clear(b);
    b->item.epoch = s->epoch;
    atomic_store_explicit(&b->item.slab, NULL, memory_order_relaxed);
    host_cache_put(&p->slab_caches[s->class_index], s);
    zone_give(b);
}

/* The slab's block goes back to the driver with its chunk, as an exposed block does. */
static void bury(struct pool *p, struct slab *s)
{
    struct block *b = s->block;
    list_remove(&s->link);
    map_clear(b);
    b->item.epoch = s->epoch;
    atomic_store_explicit(&b->item.slab, NULL, memory_order_relaxed);
    for (unsigned i = 0; i < s->object_count; i++)
        s->items[i].exposed = s->items[i].sync_memops = false;
    host_cache_put(&p->slab_caches[s->class_index], s);
    zone_bury(b);
}

static bool is_done(const struct slab *s)
{
    return s->dead_count && s->free_count + s->dead_count == s->object_count;
}

void slab_give(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch)
{
    s->epoch = max_u64(s->epoch, epoch);
    if (unlikely(s->items[slot].exposed)) {
        s->dead_count++;
        if (is_done(s))
            bury(p, s);
        return;
    }
    unsigned before = s->free_count++;
    s->free_map[slot / 64] |= UINT64_C(1) << (slot % 64);
    relink(p, s, before);
    if (unlikely(is_done(s))) {
        bury(p, s);
        return;
    }
    /* The last slab of a size stays, so that a loop with one object does not make and unmake it. */
    const struct list *empty = &p->slabs.empty[s->class_index];
    if (is_empty(s) &&
        (!list_empty(&p->slabs.partial[s->class_index]) || empty->next != empty->prev))
        destroy(p, s);
}

bool slab_release_empty(struct pool *p)
{
    bool any = false;
    for (int c = 0; c < SLAB_CLASSES; c++)
        list_for_each(n, tmp, &p->slabs.empty[c]) {
            destroy(p, list_entry(n, struct slab, link));
            any = true;
        }
    return any;
}
