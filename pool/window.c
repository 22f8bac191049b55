/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See window.h.
 */
#include "pool/window.h"

#include "pool/zone.h"

static bool is_open(const struct block *b)
{
    return b && (b->state == BLOCK_FREE || b->state == BLOCK_HOLE);
}

/* Holes start and end at granules, so the missing parts of different holes never share one. */
static uint64_t missing(const struct block *run, uint64_t start, uint64_t end)
{
    uint64_t sum = 0;
    for (const struct block *b = run; b && b->addr < end; b = b->next)
        if (b->state == BLOCK_HOLE && block_end(b) > start)
            sum += round_up(min_u64(end, block_end(b)), GRANULE_BYTES) -
                   round_down(max_u64(start, b->addr), GRANULE_BYTES);
    return sum;
}

static void consider(struct window *best, struct block *run, uint64_t start, uint64_t size_bytes)
{
    uint64_t short_bytes = missing(run, start, start + size_bytes);
    if (short_bytes < best->missing_bytes ||
        (short_bytes == best->missing_bytes && start < best->start))
        *best = (struct window){run, start, start + size_bytes, short_bytes};
}

/* The windows worth a look begin or end where a block of the run does. */
static void consider_run(struct window *best, struct block *run, const struct block *last,
                         uint64_t size_bytes, uint64_t align)
{
    for (const struct block *b = run;; b = b->next) {
        uint64_t start = round_up(b->addr, align);
        if (start + size_bytes <= block_end(last))
            consider(best, run, start, size_bytes);
        /* The last hole of the zone is the untouched rest of the reservation: only its start
         * counts. */
        if (block_end(b) >= run->addr + size_bytes && b->next) {
            start = round_down(block_end(b) - size_bytes, align);
            if (start >= run->addr)
                consider(best, run, start, size_bytes);
        }
        if (b == last)
            return;
    }
}

bool window_find(const struct zone *z, uint64_t size_bytes, uint64_t align, struct window *best)
{
    *best = (struct window){.missing_bytes = UINT64_MAX};
    for (const struct list *n = z->holes.next; n != &z->holes; n = n->next) {
        struct block *run = list_entry(n, struct block, link), *last = run;
        while (run->prev && run->prev->state == BLOCK_FREE)
            run = run->prev;
        if (is_open(run->prev))
            continue; /* a hole: it is the lowest of this run, or leads to it */
        while (is_open(last->next))
            last = last->next;
        consider_run(best, run, last, size_bytes, align);
    }
    return best->missing_bytes != UINT64_MAX;
}
