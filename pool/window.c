/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See window.h.
 */
#include "pool/window.h"

#include "pool/zone.h"

/* After so many blocks the best so far serves, at the latest the untouched rest of the zone. An
 * arena has more holes than that only in chunks of a few granules; what a better window would have
 * spared is moved rather than taken. */
#define LOOK 4096

static bool is_open(const struct block *b)
{
    return b && (b->state == BLOCK_FREE || b->state == BLOCK_HOLE);
}

/* A place in a run that only goes up: the block there, and the bytes of the run's holes below that
 * block. */
struct place {
    const struct block *block;
    uint64_t hole_bytes;
};

/* Bytes of the run's holes below addr, which lies in the run or is its end; of a hole that it lies
 * in, those below its granule's edge. Holes start and end at granules, so the parts of different
 * holes never share one. */
static uint64_t holes_below(struct place *at, uint64_t addr, uint64_t edge)
{
    for (; block_end(at->block) < addr; at->block = at->block->next)
        if (at->block->state == BLOCK_HOLE)
            at->hole_bytes += at->block->size_bytes;
    bool inside = at->block->state == BLOCK_HOLE && edge > at->block->addr;
    return at->hole_bytes + (inside ? edge - at->block->addr : 0);
}

/* The windows of one run from low starts to high ones. */
struct slide {
    struct place start, end;
};

static void consider(struct window *best, struct slide *s, struct block *run, uint64_t start,
                     uint64_t size_bytes)
{
    uint64_t end = start + size_bytes;
    uint64_t missing = holes_below(&s->end, end, round_up(end, GRANULE_BYTES)) -
                       holes_below(&s->start, start, round_down(start, GRANULE_BYTES));
    if (missing < best->missing_bytes || (missing == best->missing_bytes && start < best->start))
        *best = (struct window){run, start, end, missing};
}

/* The windows worth a look begin or end where a block of the run does: two slides, so that each
 * goes up only. */
static void consider_run(struct window *best, struct block *run, const struct block *last,
                         uint64_t size_bytes, uint64_t align)
{
    struct slide from = {{run, 0}, {run, 0}}, upto = from;
    for (const struct block *b = run;; b = b->next) {
        uint64_t start = round_up(b->addr, align);
        if (start + size_bytes <= block_end(last))
            consider(best, &from, run, start, size_bytes);
        /* The last hole of the zone is the untouched rest of the reservation: only its start
         * counts. */
        if (block_end(b) >= run->addr + size_bytes && b->next) {
            start = round_down(block_end(b) - size_bytes, align);
            if (start >= run->addr)
                consider(best, &upto, run, start, size_bytes);
        }
        if (b == last)
            return;
    }
}

bool window_find(const struct zone *z, uint64_t size_bytes, uint64_t align, struct window *best)
{
    int left = LOOK;
    *best = (struct window){.missing_bytes = UINT64_MAX};
    for (const struct list *n = z->holes.next; n != &z->holes; n = n->next, left--) {
        struct block *run = list_entry(n, struct block, link), *last = run;
        if (!run->next) /* the rest stands first: it may end a run that is never come to */
            consider_run(best, run, run, size_bytes, align);
        if (left <= 0 && best->missing_bytes != UINT64_MAX)
            break;
        while (run->prev && run->prev->state == BLOCK_FREE)
            run = run->prev;
        if (is_open(run->prev))
            continue; /* a hole: it is the lowest of this run, or leads to it */
        for (; is_open(last->next) && left > 0; left--)
            last = last->next;
        consider_run(best, run, last, size_bytes, align);
    }
    return best->missing_bytes != UINT64_MAX;
}
