/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See peak.h.
 */
#include "pool/peak.h"

#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"
#include "pool/tuning.h"

/* Bytes of the chunks that lie within a range of free memory. Only the first and the last chunk can
 * reach beyond it. 0: the context has ended, and another pool has the range. */
static uint64_t whole_chunks(const struct pool *p, uint64_t start, uint64_t end)
{
    if (start >= end)
        return 0;
    const struct chunk *first = map_chunk(start, p), *last = map_chunk(end - 1, p);
    if (unlikely(!first || !last))
        return 0;
    uint64_t from = first->addr < start ? first->addr + first->size_bytes : start;
    return minus_u64(last->addr + last->size_bytes > end ? last->addr : end, from);
}

void peak_record(struct pool *p, const struct zone *z, uint64_t live_bytes,
                 uint64_t requested_bytes)
{
    struct pool_stats *s = &p->stats;
    const struct placement *pl = &p->large.placement;
    uint64_t whole_bytes = 0, free_bytes = 0, looks = 0;
    if (s->reserved_bytes <= p->looked_peak_bytes)
        return;
    p->looked_peak_bytes = s->reserved_bytes;
    /* The request takes the lower end of this one, or the whole segment. */
    const struct block *served =
        live_bytes && z == &p->large ? placement_find(pl, live_bytes, UNIT_BYTES) : NULL;
    if (served && !p->arena)
        live_bytes = served->size_bytes;
    for (const struct block *b = placement_largest(pl); b && looks++ < PEAK_LOOKS;
         b = placement_next(pl, b)) {
        uint64_t start = b == served ? b->addr + live_bytes : b->addr;
        free_bytes += block_end(b) - start;
        whole_bytes += whole_chunks(p, start, block_end(b));
    }
    s->at_peak_requested_bytes = s->requested_bytes + requested_bytes;
    s->at_peak_rounding_bytes =
        minus_u64(s->allocated_bytes + live_bytes, s->at_peak_requested_bytes);
    s->at_peak_pending_bytes = s->pending_bytes;
    s->at_peak_whole_bytes = whole_bytes;
    s->at_peak_cut_bytes = free_bytes - whole_bytes;
    s->at_peak_small_bytes = minus_u64(s->reserved_bytes, s->allocated_bytes + live_bytes +
                                                              s->pending_bytes + free_bytes);
    s->at_peak_refused_moves = s->num_refused_moves;
    s->at_peak_running_ns = p->backend->ops->now_ns(p->backend) - p->begin_ns;
}
