/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Giving idle memory back to the driver: on request, over a limit, after a time unused, and when
 * memory is short. Lock held; drops it for driver calls.
 */
#ifndef POOL_TRIM_H
#define POOL_TRIM_H

#include <stdint.h>

struct pool;

/* Releases idle chunks, whose work is complete and which were not used since unused_ns, until
 * want_bytes at least are back. Returns the bytes that came back. */
uint64_t trim_release(struct pool *p, uint64_t want_bytes, uint64_t unused_ns);
/* Computes how often pool_tick is needed, and what MAX_RESERVED allows now. */
void trim_set_tick(struct pool *p);

#endif
