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
static uint32_t owners_trace; /* whose the owners are */

bool trace_ring_lock(void)
{
    return trace_lock(&ring_lock, LOCK_TRIES);
}

void trace_ring_unlock(void)
{
    pthread_mutex_unlock(&ring_lock);
}

/* A record is there once its last word is. Another thread may be writing the next one. */
static size_t used_bytes_of(const struct trace_chunk *chunk)
{
    const char *base = (const char *)chunk;
    size_t at = sizeof *chunk;
    while (at + sizeof(struct trace_record) <= TRACE_CHUNK_BYTES) {
        const struct trace_record *r = (const struct trace_record *)(base + at);
        uint64_t what_who = __atomic_load_n(&r->what_who, __ATOMIC_ACQUIRE);
        if (!what_who)
            break;
        if (what_who >> 24 & TRACE_WIDE)
            at += sizeof(struct trace_wide) + ((r->step_at >> 32) + 15) / 16 * 16;
        else
            at += sizeof *r;
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
        *o = (struct trace_owner){r->a, r->ticks, r->b, r->caller, seen, (uint8_t)r->kind, true};
    else if (r->kind == TRACE_FREE_FAILED)
        o->live = o->size_bytes != 0;
    else {
        o->ticks = r->ticks;
        o->live = false;
    }
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

/* With the lock. */
static struct trace_chunk *next_ring_chunk(struct trace_ring *ring)
{
    unsigned next = ring->count % TRACE_RING_CHUNKS;
    struct trace_chunk *chunk = ring->chunks[next];
    if (chunk) {
        if (ring->count >= TRACE_RING_CHUNKS)
            trace_ring_read(chunk, used_bytes_of(chunk), keep_owner);
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

void trace_ring_each(uint32_t trace, void (*f)(const struct trace_chunk *chunk, size_t used_bytes,
                                               bool lost_before))
{
    for (const struct trace_ring *ring = rings; ring; ring = ring->next) {
        unsigned there = ring->count < TRACE_RING_CHUNKS ? ring->count : TRACE_RING_CHUNKS;
        for (unsigned i = 0; ring->trace == trace && i < there; i++) {
            const struct trace_chunk *chunk =
                ring->chunks[(ring->count - there + i) % TRACE_RING_CHUNKS];
            if (__atomic_load_n(&chunk->magic, __ATOMIC_ACQUIRE) == TRACE_CHUNK_MAGIC)
                f(chunk, used_bytes_of(chunk), i == 0 && ring->count > TRACE_RING_CHUNKS);
        }
    }
}
