/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See receipt.h.
 */
#include "shim/park/receipt.h"

#include "pool/bits.h"
#include "shim/context/context.h"

struct park_gpu *receipt_gpu(struct park_receipt *r, const struct context *c)
{
    for (unsigned i = 0; i < r->num_gpus; i++)
        if (r->gpus[i].device == c->device)
            return &r->gpus[i];
    if (r->num_gpus == PARK_GPUS_MAX)
        return NULL;
    struct park_gpu *g = &r->gpus[r->num_gpus++];
    *g = (struct park_gpu){.device = c->device, .uuid = c->uuid.text};
    return g;
}

void receipt_tell(const struct park_wish *w, struct park_receipt *r)
{
    FOR_EACH_CONTEXT(c) {
        struct park_gpu *g;
        struct pool_stats stats;

        if ((w && w->device >= 0 && c->device != w->device) || !(g = receipt_gpu(r, c)))
            continue;
        pool_stats(c->pool, &stats);
        uint64_t here = stats.reserved_bytes - stats.away_bytes;
        g->away_bytes += stats.away_bytes;
        if (!w)
            continue;
        if (!pool_uses_arena(c->pool)) {
            g->segment_bytes += here;
            continue;
        }
        uint64_t exposed = min_u64(pool_exposed_bytes(c->pool), here);
        g->exposed_bytes += exposed;
        *(w->keep_bytes || w->most_bytes ? &g->kept_bytes : &g->other_bytes) += here - exposed;
    }
}
