/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a pool's reserved memory consists of while it is at its peak: the rows AT_PEAK of stats.def.
 */
#ifndef POOL_PEAK_H
#define POOL_PEAK_H

#include "pool/zone.h"

/* To be called after the pool has grown for a request of zone z, and before the request takes its
 * memory. If more is reserved than ever before, notes what the memory is used for. The request
 * counts as served: it will hold live_bytes, of which requested_bytes were asked for. Both are 0 if
 * nothing is served. Wants the pool's lock held, and never dropped since the pool grew. */
void peak_record(struct pool *p, const struct zone *z, uint64_t live_bytes,
                 uint64_t requested_bytes);

#endif
