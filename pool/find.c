/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See find.h, and pool_find, pool_taint and pool_note in pool.h.
 */
#include "pool/find.h"

#include "pool/chunk.h"
#include "pool/magazine.h"
#include "pool/map.h"
#include "pool/state.h"

struct pool *find_owner(uint64_t addr, struct granule **g)
{
    *g = map_find(addr);
    if (!*g)
        return NULL;
    for (;;) {
        struct pool *p = atomic_load_explicit(&(*g)->pool, memory_order_acquire);
        if (!p)
            return NULL;
        state_lock(p);
        if (atomic_load_explicit(&(*g)->pool, memory_order_relaxed) == p)
            return p;
        state_unlock(p);
    }
}

bool pool_owns(uint64_t addr)
{
    const struct granule *g = map_find(addr);
    return g && atomic_load_explicit(&g->pool, memory_order_acquire);
}

/* The live block or object around addr, its pool locked. */
static enum pool_status find_locked(uint64_t addr, struct pool **owner, struct block **block, int *slot)
{
    struct granule *g;
    struct pool *p = *owner = find_owner(addr, &g);
    if (!p)
        return POOL_FOREIGN;
    struct block *b = *block = map_block_around(addr, p);
    *slot = -1;
    if (b && b->state == BLOCK_LIVE && piece_is_held(&b->piece))
        return POOL_OK;
    if (b && b->state == BLOCK_SLAB) {
        *slot = slab_slot_around(b->slab, addr);
        if (*slot >= 0 && b->slab->objects[*slot].live && piece_is_held(&b->slab->pieces[*slot]))
            return POOL_OK;
    }
    state_unlock(p);
    return POOL_INVALID;
}

enum pool_status pool_find(uint64_t addr, struct pool_block *out)
{
    struct pool *p;
    struct block *b;
    int slot;
    enum pool_status status = find_locked(addr, &p, &b, &slot);
    if (status != POOL_OK)
        return status;
    *out = (struct pool_block){.pool = p, .addr = b->addr, .size_bytes = b->size_bytes,
                               .requested_bytes = b->piece.requested_bytes, .serial = b->piece.serial,
                               .tainted = b->tainted, .noted = b->noted};
    if (slot >= 0) {
        const struct piece *piece = &b->slab->pieces[slot];
        out->addr = slab_object_addr(b->slab, (unsigned)slot);
        out->size_bytes = b->slab->object_bytes;
        out->requested_bytes = piece->requested_bytes;
        out->serial = piece->serial;
        out->tainted = b->slab->objects[slot].tainted;
        out->noted = b->slab->objects[slot].noted;
    }
    if (!p->arena)
        out->segment_addr = map_find(b->addr)->chunk->addr;
    state_unlock(p);
    return POOL_OK;
}

enum pool_status pool_taint(uint64_t addr)
{
    struct pool *p;
    struct block *b;
    int slot;
    enum pool_status status = find_locked(addr, &p, &b, &slot);
    if (status != POOL_OK)
        return status;
    bool *tainted = slot >= 0 ? &b->slab->objects[slot].tainted : &b->tainted;
    struct piece *piece = slot >= 0 ? &b->slab->pieces[slot] : &b->piece;
    *tainted = true;
    piece->row = MAGAZINE_NEVER;
    state_unlock(p);
    return POOL_OK;
}

enum pool_status pool_note(uint64_t addr, bool noted)
{
    struct pool *p;
    struct block *b;
    int slot;
    enum pool_status status = find_locked(addr, &p, &b, &slot);
    if (status != POOL_OK)
        return status;
    *(slot >= 0 ? &b->slab->objects[slot].noted : &b->noted) = noted;
    state_unlock(p);
    return POOL_OK;
}
