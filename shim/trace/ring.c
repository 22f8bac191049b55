/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ring.h. The lock guards all variables here, and those of owners.c.
 */
#include "shim/trace/ring.h"

#include "shim/trace/fast.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LOCK_TRIES = 100, SITES_MOST = TRACE_CHUNK_BYTES / (int)sizeof(struct trace_wide) + 1 };

struct trace_ring {
    struct trace_ring *next;
    uint32_t trace;
    unsigned count; /* of chunks that were taken, ever */
    struct trace_chunk *chunks[TRACE_RING_CHUNKS];
};

static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static struct trace_ring *rings;
static uint32_t owners_trace;         /* whose the owners are */
static _Atomic uint64_t known_oldest; /* ticks, when a chunk was last taken anew */

bool trace_ring_lock(void)
{
    return trace_lock(&ring_lock, LOCK_TRIES);
}

void trace_ring_unlock(void)
{
    pthread_mutex_unlock(&ring_lock);
}

/* A record is there once its last word is. Another thread may be writing the next one. */
static size_t used_bytes_of(const struct trace_chunk *chunk, uint64_t until_ticks)
{
    const char *base = (const char *)chunk;
    size_t at = sizeof *chunk;
    uint64_t ticks = chunk->ticks;
    while (at + sizeof(struct trace_record) <= TRACE_CHUNK_BYTES) {
        const struct trace_wide *w = (const struct trace_wide *)(base + at);
        uint64_t what_who = __atomic_load_n(&w->record.what_who, __ATOMIC_ACQUIRE);
        uint64_t step_at = what_who ? w->record.step_at : 0;
        bool is_wide = what_who >> 24 & TRACE_WIDE;
        ticks += (step_at & UINT32_MAX) << TRACE_STEP_SHIFT;
        if (is_wide && (what_who >> 24 & (TRACE_WIDE - 1)) == TRACE_TIME)
            ticks = w->a;
        if (!what_who || ticks > until_ticks)
            break;
        at += is_wide ? sizeof *w + ((step_at >> 32) + 15) / 16 * 16 : sizeof w->record;
    }
    return at;
}

/* What the chunk's records with a wide part say of the others. */
struct reading {
    uint64_t ticks, base_units;
};

/* Returns where the next record is. */
static const char *read_one(const char *at, struct reading *c, struct trace_seen *out)
{
    static uint64_t sites[SITES_MOST];
    const struct trace_wide *w = (const struct trace_wide *)at;
    uint64_t what_who = w->record.what_who, step_at = w->record.step_at;
    size_t site = what_who >> 32 & 0xffffff;
    bool is_wide = what_who >> 24 & TRACE_WIDE;
    *out = (struct trace_seen){.kind = what_who >> 24 & (TRACE_WIDE - 1),
                               .context = (unsigned)(what_who >> 56)};
    c->ticks += (step_at & UINT32_MAX) << TRACE_STEP_SHIFT;
    out->a = is_wide ? w->a : (c->base_units + (step_at >> 32)) << TRACE_UNIT_SHIFT;
    out->b = is_wide ? w->b : what_who & 0xffffff;
    if (out->kind == TRACE_BASE)
        c->base_units = out->a;
    else if (out->kind == TRACE_TIME)
        c->ticks = out->a;
    else if (out->kind == TRACE_SITE && site < SITES_MOST)
        sites[site] = out->a;
    out->ticks = c->ticks;
    out->caller = site && site < SITES_MOST ? sites[site] : 0;
    return at + (is_wide ? sizeof *w + ((step_at >> 32) + 15) / 16 * 16 : sizeof w->record);
}

void trace_ring_read(const struct trace_chunk *chunk, size_t used_bytes,
                     void (*f)(const struct trace_seen *record))
{
    struct reading c = {.ticks = chunk->ticks};
    const char *at = (const char *)(chunk + 1), *end = (const char *)chunk + used_bytes;
    while (at < end) {
        struct trace_seen seen;
        at = read_one(at, &c, &seen);
        f(&seen);
    }
}

static void note_free(struct trace_owner *o, uint64_t ticks, uint32_t seen)
{
    o->was_live = o->live;
    o->ticks_before = o->ticks;
    o->ticks = ticks;
    o->live = false;
    o->seen = seen;
}

/* It failed. If no other record of the address is known, older ones may come yet, and a block there
 * is not told so far. */
static void undo_free(struct trace_owner *o)
{
    if (o->live)
        return; /* another thread's block by now */
    o->live = o->was_live;
    o->ticks = o->ticks_before;
    if (!o->ticks)
        o->seen = 0;
}

/* The records of several threads come in any order, so the newest one of an address holds. A free
 * of an address that has no place leaves one: the older record of its allocation may come yet. */
struct trace_owner trace_ring_own(const struct trace_seen *r, uint32_t seen)
{
    struct trace_owner *o = NULL, before = {0};
    bool is_alloc =
        r->kind == TRACE_ALLOC_FAST || r->kind == TRACE_ALLOC || r->kind == TRACE_ALLOC_DRIVER;
    if (is_alloc || r->kind == TRACE_FREE)
        o = trace_owners_at(r->a);
    else if (r->kind == TRACE_FREE_ASYNC || r->kind == TRACE_FREE_FAILED)
        o = trace_owners_find(r->a);
    if (!o || r->ticks < o->ticks)
        return before;
    if (o->live && r->kind != TRACE_FREE_FAILED)
        before = *o;
    if (is_alloc)
        *o = (struct trace_owner){r->a, r->ticks, r->b, r->caller, seen, (uint8_t)r->kind,
                                  true, false,    0};
    else if (r->kind == TRACE_FREE_FAILED)
        undo_free(o);
    else
        note_free(o, r->ticks, seen);
    return before;
}

static void keep_owner(const struct trace_seen *record)
{
    trace_ring_own(record, 0);
}

/* The thread's ring, which is in the list. NULL: no host memory. */
static struct trace_ring *ring_of(struct trace_ring *ring, uint32_t trace)
{
    if (!ring) {
        ring = calloc(1, sizeof *ring);
        if (!ring)
            return NULL;
        ring->next = rings;
        rings = ring;
    }
    if (ring->trace != trace) {
        ring->trace = trace;
        ring->count = 0;
    }
    if (owners_trace != trace) {
        owners_trace = trace;
        trace_owners_forget();
    }
    return ring;
}

static bool is_begun(const struct trace_chunk *chunk)
{
    return __atomic_load_n(&chunk->magic, __ATOMIC_ACQUIRE) == TRACE_CHUNK_MAGIC;
}

static unsigned count_chunks(const struct trace_ring *ring)
{
    return ring->count < TRACE_RING_CHUNKS ? ring->count : TRACE_RING_CHUNKS;
}

/* From the oldest on. */
static struct trace_chunk *chunk_of(const struct trace_ring *ring, unsigned i)
{
    return ring->chunks[(ring->count - count_chunks(ring) + i) % TRACE_RING_CHUNKS];
}

/* No record of the rings is older. */
static uint64_t oldest_ticks(uint32_t trace)
{
    uint64_t oldest = UINT64_MAX;
    for (const struct trace_ring *ring = rings; ring; ring = ring->next) {
        bool has = ring->trace == trace && ring->count && is_begun(chunk_of(ring, 0));
        if (has && chunk_of(ring, 0)->ticks < oldest)
            oldest = chunk_of(ring, 0)->ticks;
    }
    return oldest;
}

uint64_t trace_ring_oldest(void)
{
    return atomic_load(&known_oldest);
}

/* With the lock. */
static struct trace_chunk *next_ring_chunk(struct trace_ring *ring)
{
    unsigned next = ring->count % TRACE_RING_CHUNKS;
    struct trace_chunk *chunk = ring->chunks[next];
    if (chunk) {
        if (ring->count >= TRACE_RING_CHUNKS) {
            atomic_store(&known_oldest, oldest_ticks(ring->trace));
            trace_owners_keep_since(atomic_load(&known_oldest));
            trace_ring_read(chunk, used_bytes_of(chunk, UINT64_MAX), keep_owner);
        }
        memset(chunk, 0, TRACE_CHUNK_BYTES);
    } else {
        void *made = mmap(NULL, TRACE_CHUNK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED)
            return NULL;
        ring->chunks[next] = chunk = made;
    }
    ring->count++;
    return chunk;
}

struct trace_chunk *trace_ring_chunk(struct trace_ring **ring, uint32_t trace)
{
    struct trace_chunk *chunk = NULL;
    if (!trace_ring_lock())
        return NULL;
    struct trace_ring *its = ring_of(*ring, trace);
    if (its) {
        *ring = its;
        chunk = next_ring_chunk(its);
    }
    trace_ring_unlock();
    return chunk;
}

void trace_ring_each(uint32_t trace, uint64_t until_ticks,
                     void (*f)(const struct trace_chunk *chunk, size_t used_bytes,
                               bool lost_before))
{
    for (const struct trace_ring *ring = rings; ring; ring = ring->next) {
        unsigned there = count_chunks(ring);
        for (unsigned i = 0; ring->trace == trace && i < there; i++) {
            const struct trace_chunk *chunk = chunk_of(ring, i);
            if (is_begun(chunk) && chunk->ticks <= until_ticks)
                f(chunk, used_bytes_of(chunk, until_ticks),
                  i == 0 && ring->count > TRACE_RING_CHUNKS);
        }
    }
}
