/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See receipt.h.
 */
#include "shim/park/receipt.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/process/clock.h"
#include "shim/process/log.h"
#include "shim/process/text.h"

#include <string.h>

#define GIB (UINT64_C(1) << 30)

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

uint64_t receipt_parked_bytes(const struct park_receipt *r)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < r->num_gpus; i++)
        bytes += r->gpus[i].parked_bytes;
    return bytes;
}

/* A park of a process that has left the GPU makes no room anywhere. */
bool receipt_took_any(const struct park_receipt *r)
{
    return receipt_parked_bytes(r) || (r->is_whole && r->to[0]);
}

void receipt_log(const struct park_receipt *r)
{
    const char *to = strcmp(r->to, "host") ? r->to : "the host";
    const char *whole = r->is_whole ? ", and the process has left the GPU" : "";
    const char *but = !r->why[0] ? "" : r->is_whole ? "; " : "; not whole: ";
    uint64_t away_bytes = 0;

    for (unsigned i = 0; i < r->num_gpus; i++)
        away_bytes += r->gpus[i].away_bytes;
    if (receipt_took_any(r))
        log_info("parked in %s ms: %s GiB went to %s%s%s%s", text_fixed(r->ns, MS_NS, 1).text,
                 text_fixed(receipt_parked_bytes(r), GIB, 2).text, to, whole, but, r->why);
    else
        log_info("nothing to park; %s GiB parked in all%s%s%s", text_fixed(away_bytes, GIB, 2).text,
                 whole, but, r->why);
}
