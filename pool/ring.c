/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ring.h.
 */
#include "pool/ring.h"

#include "pool/tuning.h"

void ring_unpin(struct ring *r, unsigned at, uint64_t event)
{
    for (unsigned left = r->count; left > 0; left--) {
        at = at < r->count ? at : r->count - 1;
        if (r->at[at].event == event) {
            r->at[at].pins--;
            return;
        }
        at = at ? at - 1 : r->count - 1;
    }
}

void ring_collect(struct ring *r, uint64_t complete_epoch, uint64_t passed_epoch)
{
    unsigned old = ring_find(r, complete_epoch + 1);
    unsigned passed = passed_epoch == RING_ALL ? r->count : ring_find(r, passed_epoch);
    unsigned end = passed > old ? passed : old, kept = 0, extra = end - old;
    if (!old && extra <= 2 * RING_KEEP_PASSED)
        return;
    if (extra <= 2 * RING_KEEP_PASSED)
        extra = 0;
    for (unsigned i = 0; i < end; i++) {
        struct fence e = r->at[i];
        bool spare = extra > RING_KEEP_PASSED && kept > 0 && i + 1 < r->count;
        if (e.pins == 0 && (i < old || spare)) {
            ring_put_spare(r, e.event);
            extra -= i >= old;
        } else {
            r->at[kept++] = e;
        }
    }
    memmove(&r->at[kept], &r->at[end], (r->count - end) * sizeof r->at[0]);
    r->count -= end - kept;
}

static void drop(struct ring *r, unsigned at)
{
    ring_put_spare(r, r->at[at].event);
    r->count--;
    memmove(&r->at[at], &r->at[at + 1], (r->count - at) * sizeof r->at[0]);
}

void ring_thin(struct ring *r)
{
    for (unsigned i = 0; i + 1 < r->count; i++)
        if (r->at[i].pins == 0 && (r->at[i].late || !r->at[i + 1].late))
            drop(r, i); /* the successor is at i now, and stays */
}
