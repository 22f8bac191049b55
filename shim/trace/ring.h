/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Rings: what a trace without a file keeps (GPUCACHE_TRACE_ON=oom). A thread has TRACE_RING_CHUNKS
 * chunks of its own in host memory and takes the oldest anew when all are full. Before that, the
 * owners of its blocks go to owners.h. Memory beside the pool has a list of its own (beside.h). A
 * thread that begins after another one ended goes on in that one's ring. A chunk makes each of its
 * sites known itself.
 *
 * The lock is held while a chunk is taken anew, so that a dump reads whole chunks. Threads write to
 * the chunks that they have without it. They await it for 100 ms, then their records are lost until
 * they get it. No cancellation point.
 */
#ifndef SHIM_TRACE_RING_H
#define SHIM_TRACE_RING_H

#include "shim/trace/format.h"
#include "shim/trace/owners.h"

#include <stdbool.h>
#include <stddef.h>

enum { TRACE_RING_CHUNKS = 4 };

struct trace_ring;

/* The thread's next chunk in the trace of this number, all zero. *ring is the thread's; NULL at
 * first. NULL: no host memory, or the lock was not to be had. */
struct trace_chunk *trace_ring_chunk(struct trace_ring **ring, uint32_t trace);

/* No record of the rings that are on is older. Without the lock; never decreases. */
uint64_t trace_ring_oldest(void);

bool trace_ring_lock(void);
void trace_ring_unlock(void);

/* With the lock. Calls f for each chunk of the trace that was begun at `until` or before.
 * used_bytes: up to its last record that is there and of then. lost_before: the thread's earlier
 * records are gone.
 * With the present time as `until`, an allocation that is among the records follows the free of the
 * block before it, whichever thread made that: its record was there before the allocation began
 * (trace.h, step 2), and the clock that records are told by is the same on all processors. */
void trace_ring_each(uint32_t trace, uint64_t until_ticks,
                     void (*f)(const struct trace_chunk *chunk, size_t used_bytes,
                               bool lost_before));

/* A record as it was written. */
struct trace_seen {
    uint64_t ticks, a, b, caller;
    enum trace_kind kind;
    unsigned context;
};
/* With the lock: calls f for each record of a chunk. */
void trace_ring_read(const struct trace_chunk *chunk, size_t used_bytes,
                     void (*f)(const struct trace_seen *record));
/* Takes the record into the owners. Returns the block that was live at its address before; its addr
 * is 0: there was none. */
struct trace_owner trace_ring_own(const struct trace_seen *record, uint32_t seen);

#endif
