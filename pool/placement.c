/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See placement.h.
 */
#include "pool/placement.h"

#include "pool/tuning.h"
#include "pool/zone.h"

#include <string.h>

static unsigned bin_of(uint64_t size_bytes)
{
    uint64_t units = size_bytes >> UNIT_SHIFT;
    if (units < 32)
        return (unsigned)units;
    unsigned e = log2_floor(units);
    unsigned bin = 32 + (e - 5) * 32 + (unsigned)((units >> (e - 5)) & 31);
    return bin < PLACEMENT_BINS ? bin : PLACEMENT_BINS - 1;
}

/* A bin whose bit is not set has an empty list, or none yet. */
void placement_init(struct placement *pl)
{
    for (unsigned bin = 0; bin < PLACEMENT_BINS; bin++)
        if (pl->map[bin / 64] >> (bin % 64) & 1)
            list_init(&pl->heads[bin]);
    memset(pl->map, 0, sizeof pl->map);
}

void placement_insert(struct placement *pl, struct block *b)
{
    unsigned bin = bin_of(b->size_bytes);
    uint64_t bit = UINT64_C(1) << (bin % 64);
    if (!(pl->map[bin / 64] & bit))
        list_init(&pl->heads[bin]);
    list_push_front(&pl->heads[bin], &b->link);
    pl->map[bin / 64] |= bit;
}

void placement_remove(struct placement *pl, struct block *b)
{
    unsigned bin = bin_of(b->size_bytes);
    list_remove(&b->link);
    if (list_empty(&pl->heads[bin]))
        pl->map[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
}

static bool fits(const struct block *b, uint64_t size_bytes, uint64_t align)
{
    return round_up(b->addr, align) + size_bytes <= block_end(b);
}

static struct block *first_in(const struct list *head, uint64_t size_bytes, uint64_t align)
{
    int left = PLACEMENT_LOOK;
    for (const struct list *n = head->next; n != head && left > 0; n = n->next, left--)
        if (fits(list_entry(n, struct block, link), size_bytes, align))
            return list_entry(n, struct block, link);
    return NULL;
}

struct block *placement_find(const struct placement *pl, uint64_t size_bytes, uint64_t align)
{
    unsigned bin = bin_of(size_bytes);
    struct block *b = NULL;
    uint64_t word = pl->map[bin / 64] & (UINT64_MAX << (bin % 64));
    for (unsigned i = bin / 64; !b;) {
        while (!word) {
            if (++i == PLACEMENT_BINS / 64)
                return NULL;
            word = pl->map[i];
        }
        b = first_in(&pl->heads[i * 64 + (unsigned)__builtin_ctzll(word)], size_bytes, align);
        word &= word - 1;
    }
    return b;
}

/* The first block of the highest bin below this one that holds a block. */
static struct block *first_below(const struct placement *pl, unsigned bin)
{
    while (bin > 0) {
        unsigned at = bin - 1;
        uint64_t word = pl->map[at / 64] & (UINT64_MAX >> (63 - at % 64));
        if (word)
            return list_entry(pl->heads[at - at % 64 + log2_floor(word)].next, struct block, link);
        bin = at - at % 64;
    }
    return NULL;
}

struct block *placement_largest(const struct placement *pl)
{
    return first_below(pl, PLACEMENT_BINS);
}

struct block *placement_next(const struct placement *pl, const struct block *b)
{
    unsigned bin = bin_of(b->size_bytes);
    if (b->link.next != &pl->heads[bin])
        return list_entry(b->link.next, struct block, link);
    return first_below(pl, bin);
}

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

/* Bytes of the run's holes below addr, which lies in the run or is its end. If addr lies in a hole,
 * the bytes of this hole below `edge` count. The edge is that of addr's granule. Holes start and
 * end at granules, so the parts of different holes never share one. */
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

/* The best windows begin or end where a block of the run does. There are two slides, so that each
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

bool placement_find_window(const struct zone *z, uint64_t size_bytes, uint64_t align,
                           struct window *best)
{
    int left = PLACEMENT_LOOK_HOLES;
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
            continue; /* a hole: the lowest of this run, or one that leads to it */
        for (; is_open(last->next) && left > 0; left--)
            last = last->next;
        consider_run(best, run, last, size_bytes, align);
    }
    return best->missing_bytes != UINT64_MAX;
}

const char *placement_check(const struct zone *z, uint64_t *free_bytes)
{
    const struct placement *pl = &z->placement;
    *free_bytes = 0;
    for (unsigned bin = 0; bin < PLACEMENT_BINS; bin++) {
        const struct list *head = &pl->heads[bin];
        bool marked = pl->map[bin / 64] >> (bin % 64) & 1;
        if (marked != (head->next && !list_empty(head)))
            return "the bitmap tells which bins hold blocks";
        for (const struct list *n = head->next; marked && n != head; n = n->next) {
            const struct block *b = list_entry(n, struct block, link);
            if (b->state != BLOCK_FREE || b->zone != z)
                return "bins hold the zone's free blocks only";
            *free_bytes += b->size_bytes;
        }
    }
    return NULL;
}
