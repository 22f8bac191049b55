/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A chunk: physical memory that comes and goes as one piece. In an arena it is a handle mapped at
 * addr, in segment backing one allocation of the driver's. It is idle while it lies within one free
 * block: free neighbours are always merged, so nothing has to be counted. Belongs to the pool's
 * lock.
 */
#ifndef POOL_CHUNK_H
#define POOL_CHUNK_H

#include "pool/list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct backend;
struct block;
struct zone;

/* Where a chunk's memory is: see park.c. Only what is HERE is moved, released or seized. */
enum chunk_park {
    CHUNK_HERE, /* on the device */
    CHUNK_HELD, /* on the device; its bytes are copied, or will be */
    CHUNK_AWAY, /* nowhere on the device: its bytes are on the host, its addresses stay its own */
    CHUNK_BACK, /* on the device again, but its bytes may still be on the host alone */
};

/* Where a chunk is after an attempt to create or move it. */
enum chunk_outcome {
    CHUNK_STAYED,  /* where it was */
    CHUNK_MOVED,   /* at its target */
    CHUNK_CREATED, /* new, at its target */
    CHUNK_LOST,    /* taken from its place, and given back to the driver */
    CHUNK_GONE,    /* never there */
};

struct chunk {
    uint64_t addr, size_bytes;
    uint64_t handle; /* arena only */
    struct zone *zone;
    struct list all;    /* zone.chunks */
    struct chunk *plan; /* while a thread works on it: next in its list */
    struct block
        *busy_block;      /* .. the block that covers it where it is; NULL: nobody works on it */
    struct block *target; /* .. the block that it is to come to */
    enum chunk_outcome outcome;
    bool in_use_by_gpu; /* .. old work may use it: a moved chunk keeps its old mapping */
    bool exposed;       /* something in it is or was exposed, and is live, pending or dead */
    enum chunk_park park;
    bool still_mapped;      /* AWAY; the driver may not have undone the mapping of a failed wake */
    struct list parked;     /* pool.parked, unless HERE */
    uint64_t idle_since_ns; /* last use, if IDLE_TIMEOUT is set; else when it was committed */
};

struct pool;

/* The chunk at *at, or the next one below end. *at comes behind it. NULL: there is none, or *looks
 * were not enough to find it; then *at is as far as they went. */
struct chunk *chunk_next(const struct pool *p, uint64_t *at, uint64_t end, unsigned *looks);
/* Something in b becomes known outside the pool: the chunks that b touches say so for ever. Dead
 * memory is never handed out again, so it goes with its chunk only. */
void chunk_expose(const struct block *b);

/* Takes idle chunks of a zone out of the bins, each below one BUSY block (busy_block), as a list
 * through plan. Takes only chunks unused since unused_ns or earlier. Goes through the largest free
 * blocks first, until it has want_bytes. *got_bytes is the sum of what it took.
 *
 * To be released: only chunks whose last use is complete, and CHUNK_BATCH at a time. The caller
 * calls again until there is none.
 *
 * To be moved (move): only chunks that are no larger than what is still wanted, CHUNK_MOVES at
 * most. */
struct chunk *chunk_seize_idle(struct zone *z, uint64_t want_bytes, uint64_t unused_ns, bool move,
                               uint64_t *got_bytes);
/* What chunk_seize_idle leaves out of the zone's free blocks, because GPU work may use it. */
uint64_t chunk_behind_work_bytes(struct zone *z);
/* Releases the chunks that hold only dead and free memory, if there is enough of it. Without this a
 * program that shares 2000 blocks of 8 MiB in turn reserves 16.3 GiB instead of 324 MiB. Drops the
 * lock. */
void chunk_release_dead(struct pool *p);
/* Puts back seized chunks that were not needed. */
void chunk_unseize(struct chunk *list);
/* Gives seized chunks back to the driver, but for segments whose context may be ending. Returns
 * their bytes. Drops the lock. */
uint64_t chunk_release(struct pool *p, struct chunk *list);
/* Only the driver's part of that: unmaps and releases the memory of an arena's chunks. may_stay:
 * one that the driver does not unmap keeps its memory, and its outcome is CHUNK_STAYED. Returns the
 * bytes of the others, whose outcome is CHUNK_LOST. Lock not held. */
uint64_t chunk_give_memory(struct backend *b, struct chunk *list, bool may_stay);
/* Takes chunks that are away and wholly free out of the bins, each below one BUSY block. No GPU
 * work may use them. Yields the lock. chunk_unseize puts them back. chunk_drop makes one a hole. */
void chunk_seize_away(struct pool *p);
void chunk_drop(struct pool *p, struct chunk *c);
/* What chunk_seize_away would take out of the zone. */
uint64_t chunk_free_away_bytes(struct zone *z);
/* So many bytes more, or less, are away. */
void chunk_count_away(struct pool *p, uint64_t more_bytes, uint64_t less_bytes);
/* Bytes that are away in all pools of the process. */
extern _Atomic uint64_t chunk_away_bytes;

/* A ghost: addresses of an arena whose memory was moved. They keep their old mapping until the old
 * GPU work that uses it is complete. arena.h says why that is safe. */
/* A BUSY block becomes a ghost. Its epoch says which work it waits for. */
void chunk_add_ghost(struct block *b);
/* Unmaps the ghosts whose old work is complete, or all of them; their addresses become holes. Drops
 * the lock. */
void chunk_reap_ghosts(struct pool *p, bool all);

/* Adds the chunk to the zone, or removes it. */
void chunk_enter(struct chunk *c, struct zone *z);
void chunk_leave(struct chunk *c);

#endif
