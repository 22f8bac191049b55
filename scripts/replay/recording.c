/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See recording.h. Each free finds the block that has its address.
 */
#include "scripts/replay/recording.h"

#include "scripts/replay/records.h"
#include "shim/trace/format.h"

#include <stdbool.h>
#include <stdlib.h>

/* A free that came with an older clock than the next allocation of its address, from another
 * thread, lies so far behind at most. */
#define LATE_NS UINT64_C(1000000)
#define MOST_NS (UINT64_C(1) << 62)

enum { CONTEXTS_MOST = 256 };

/* Blocks by address: open addressing, at most half full. */
struct live {
    uint64_t addr, size_bytes; /* size 0: a place that was never used; of what is not there 1 */
    uint64_t late_ns;          /* not 0: a free that comes before this is of the block before */
    uint32_t block;
    bool there;
};

struct matcher {
    struct live *places;
    size_t room, used;
    uint32_t *spare; /* numbers of blocks that are gone */
    size_t spare_count, spare_room;
    size_t there; /* blocks */
    bool contexts[CONTEXTS_MOST];
    unsigned num_contexts;
    uint64_t live_bytes;
    bool short_of_memory;
};

static struct live *place_of(struct live *places, size_t room, uint64_t addr)
{
    size_t at = (addr >> TRACE_UNIT_SHIFT) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (room - 1);
    while (places[at].size_bytes && places[at].addr != addr)
        at = (at + 1) & (room - 1);
    return &places[at];
}

/* Forgets what is not there, and takes more places if that is not enough. */
static bool enlarge(struct matcher *m)
{
    size_t room = m->there * 4 < m->room ? m->room : m->room ? m->room * 2 : 4096;
    struct live *more = calloc(room, sizeof *more);
    if (!more)
        return false;
    for (size_t i = 0; i < m->room; i++)
        if (m->places[i].there)
            *place_of(more, room, m->places[i].addr) = m->places[i];
    m->used = m->there;
    free(m->places);
    m->places = more;
    m->room = room;
    return true;
}

static void emit(struct recording *r, uint64_t ns, uint64_t size_bytes, uint32_t block)
{
    r->events[r->count++] = (struct recording_event){ns, size_bytes, block};
}

static void end_block(struct recording *r, struct matcher *m, struct live *its, uint64_t ns)
{
    m->spare = records_grown(m->spare, m->spare_count, &m->spare_room, sizeof *m->spare);
    if (!m->spare) {
        m->short_of_memory = true;
        m->spare_count = m->spare_room = 0;
        return;
    }
    m->spare[m->spare_count++] = its->block;
    m->live_bytes -= its->size_bytes;
    m->there--;
    its->there = false;
    emit(r, ns, 0, its->block);
}

static void begin_block(struct recording *r, struct matcher *m, struct live *its, uint64_t ns,
                        uint64_t size_bytes)
{
    uint64_t late_ns = its->there ? ns + LATE_NS : 0;
    if (its->there)
        end_block(r, m, its, ns);
    if (m->short_of_memory)
        return;
    its->size_bytes = size_bytes;
    its->late_ns = late_ns;
    its->there = true;
    its->block = m->spare_count ? m->spare[--m->spare_count] : r->num_blocks++;
    m->there++;
    m->live_bytes += size_bytes;
    if (m->live_bytes > r->peak_live_bytes)
        r->peak_live_bytes = m->live_bytes;
    emit(r, ns, size_bytes, its->block);
}

/* All memory is gone with the last context. Of several nobody knows whose is whose. */
static void end_context(struct recording *r, struct matcher *m, uint64_t ns, unsigned context)
{
    m->num_contexts -= m->contexts[context];
    m->contexts[context] = false;
    for (size_t i = 0; !m->num_contexts && i < m->room && !m->short_of_memory; i++)
        if (m->places[i].there)
            end_block(r, m, &m->places[i], ns);
}

static void match(struct recording *r, struct matcher *m, uint64_t ns, const struct record *one)
{
    unsigned kind = RECORD_KIND(one), context = RECORD_CONTEXT(one);
    if (kind == TRACE_CONTEXT) {
        m->num_contexts += !m->contexts[context];
        m->contexts[context] = true;
        return;
    }
    if (kind == TRACE_CONTEXT_END) {
        end_context(r, m, ns, context);
        return;
    }
    bool frees = kind == TRACE_FREE || kind == TRACE_FREE_ASYNC;
    if (!frees && !RECORD_SIZE(one))
        return;
    if (m->used >= m->room / 2 && !enlarge(m)) {
        m->short_of_memory = true;
        return;
    }
    struct live *its = place_of(m->places, m->room, one->addr);
    bool known = its->size_bytes;
    m->used += !known;
    its->addr = one->addr;
    its->size_bytes = known ? its->size_bytes : 1;
    if (frees) {
        if (its->there && ns < its->late_ns)
            its->late_ns = 0;
        else if (its->there)
            end_block(r, m, its, ns);
    } else if (kind != TRACE_LIVE || !known) { /* or it was handed out, or came back, meanwhile */
        begin_block(r, m, its, ns, RECORD_SIZE(one));
    }
}

/* Later times, of a broken file, are this one: sums with it have room. */
static uint64_t bounded(double ns)
{
    return ns < (double)MOST_NS ? (uint64_t)ns : MOST_NS;
}

/* false: no memory for it. */
static bool match_all(struct recording *r, const struct records *d)
{
    struct matcher m = {0};
    uint64_t span_ticks = d->last_ticks - d->start_ticks;
    bool told = d->last_ticks > d->start_ticks && d->last_ns > d->start_ns;
    double rate = told ? (double)(d->last_ns - d->start_ns) / (double)span_ticks : 1;
    /* An address that is asked for twice has a free in between. */
    r->events = malloc((2 * d->count + 1) * sizeof *r->events);
    for (size_t i = 0; r->events && i < d->count && !m.short_of_memory; i++) {
        uint64_t ticks = d->all[i].ticks;
        uint64_t since = ticks > d->start_ticks ? ticks - d->start_ticks : 0;
        match(r, &m, bounded((double)since * rate), &d->all[i]);
    }
    free(m.places);
    free(m.spare);
    r->span_ns = told ? bounded((double)(d->last_ns - d->start_ns)) : 0;
    if (r->count && r->events[r->count - 1].ns > r->span_ns)
        r->span_ns = r->events[r->count - 1].ns;
    return r->events && !m.short_of_memory;
}

const char *recording_read(struct recording *r, const char *path)
{
    struct records d;
    *r = (struct recording){0};
    const char *why = records_read(&d, path);
    if (!why && !match_all(r, &d))
        why = "there is too little memory for it";
    r->gpu_bytes = d.gpu_bytes;
    r->num_gpus = (unsigned)__builtin_popcountll(d.gpus);
    records_finish(&d);
    if (why)
        recording_finish(r);
    return why;
}

void recording_finish(struct recording *r)
{
    free(r->events);
    *r = (struct recording){0};
}
