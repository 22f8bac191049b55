/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Who asked for each block, by the newest record of its address, of records that the rings have no
 * more (shim/trace/ring.h). Such records say who holds memory that has been live for long.
 *
 * The lock of the rings guards all of it. It takes host memory of its own, 56 bytes for each
 * address, for at most TRACE_OWNERS_MAX addresses, and as much again for a copy. What has no room
 * there has no owner.
 */
#ifndef SHIM_TRACE_OWNERS_H
#define SHIM_TRACE_OWNERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_OWNERS_MAX = 3 << 18 };

struct trace_owner {
    uint64_t addr;  /* 0: the place is free */
    uint64_t ticks; /* of the newest record; 0: of a free that failed, and no other is known */
    uint64_t size_bytes;
    uint64_t caller;
    uint32_t seen; /* the number of the dump that found the record in a ring; 0: none did */
    uint8_t kind;  /* of the allocation */
    bool live;     /* the newest record is no free */
    /* What `live` and `ticks` were before the newest free, which may have failed. */
    bool was_live;
    uint64_t ticks_before;
};

/* Places of blocks that were freed since then stay: older records of them may come yet. Where the
 * room is short, they do not. */
void trace_owners_keep_since(uint64_t ticks);
/* From now on all here is of a copy, until trace_owners_back throws it away. False: there is no
 * host memory. */
bool trace_owners_copy(void);
void trace_owners_back(void);
/* The address's place, made if there is none. NULL: there is no room. Good until the next call. */
struct trace_owner *trace_owners_at(uint64_t addr);
/* NULL: there is none. */
struct trace_owner *trace_owners_find(uint64_t addr);
/* The place after this one; NULL: the first, or there are no more. */
struct trace_owner *trace_owners_next(const struct trace_owner *after);
void trace_owners_forget(void);

#endif
