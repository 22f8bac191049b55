/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The records of a trace (shim/trace/format.h) that say what was live, in the order of time, from
 * the header's start on. Chunks are of several threads. A trace may be cut off, be written to while
 * it is read, or hold anything: what makes no sense is left out. The file is read, not mapped,
 * because it may be cut off meanwhile.
 */
#ifndef REPLAY_RECORDS_H
#define REPLAY_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    uint64_t ticks, addr;
    uint64_t what; /* bytes, the context above them, and the kind above that */
};

#define RECORD_SIZE_BITS 48
#define RECORD_SIZE(r) ((r)->what & ((UINT64_C(1) << RECORD_SIZE_BITS) - 1))
#define RECORD_CONTEXT(r) ((unsigned)((r)->what >> RECORD_SIZE_BITS & 0xff))
#define RECORD_KIND(r) ((unsigned)((r)->what >> 56)) /* enum trace_kind */

struct records {
    struct record *all;
    size_t count, room;
    size_t *runs; /* where records are that are older than those before them */
    size_t run_count, run_room;
    uint64_t start_ticks, start_ns, last_ticks,
        last_ns;        /* the first pair of clocks, the last one */
    uint64_t gpus;      /* bits */
    uint64_t gpu_bytes; /* of the largest; 0: not told */
    bool short_of_memory;
};

/* NULL, or why there are none, in words. records_finish either way. */
const char *records_read(struct records *d, const char *path);
void records_finish(struct records *d);

/* Room for one more thing of `size` bytes. NULL: there is none, and all is freed. */
void *records_grown(void *all, size_t count, size_t *room, size_t size);

#endif
