/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Giving idle memory back to the driver: on request, over a limit, after a time unused, and when
 * memory is short. Lock held; drops it for driver calls.
 */
#ifndef POOL_TRIM_H
#define POOL_TRIM_H

#include <stdint.h>

struct pool;

/* Releases idle chunks, whose work is complete and which nobody used since unused_ns, until at least
 * want_bytes are back. Returns what came back. */
uint64_t trim_release(struct pool *p, uint64_t want_bytes, uint64_t unused_ns);
/* Learns what is complete, waiting at most wait_ns for all that was freed so far. */
void trim_settle(struct pool *p, uint64_t wait_ns);
/* Idle: reserved and neither live nor pending. */
uint64_t trim_idle_bytes(const struct pool *p);

#endif
