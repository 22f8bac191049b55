/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The tuning constants of the pool, one row each: the name, the value, and what the value was
 * measured against. "A bound" is a value that only has to be finite: no measurement depends on it.
 * What the program may tune is in config.def. The format of records and maps (units, granules,
 * bins, classes) is with the structs that have it.
 *
 * A _SHIFT of n is a part of 1/2^n. "Replay" is tests/bench/replay on the recorded and synthetic
 * programs, peak reserved over peak live; "lock time" is tests/bench/latency.
 */
#ifndef POOL_TUNING_H
#define POOL_TUNING_H

#include "pool/bits.h"

#define MS_NS UINT64_C(1000000)
#define SECOND_NS (1000 * MS_NS)

/* Waits of a thread for another one */
#define SPIN_YIELDS 64      /* turns that only yield: a bound */
#define SPIN_SLEEP_NS 50000 /* the default timer slack of Linux: no sleep is much shorter */
#define SPIN_LONG_SHIFT 5   /* 1.6 ms: 64 waiting threads take a tenth of a processor */
#define MAGAZINE_SPINS 100  /* looks before a turn: a magazine is held for tens of instructions */
#define FENCE_SUBMIT_TURNS (SPIN_YIELDS + 20) /* some 2 ms, where a record takes 1 us */

/* Out of memory: how long a request waits where the program would fail at once without the pool */
/* A bound: work that the program's own frees would wait for. */
#define OOM_WAIT_NS (10 * SECOND_NS)
#define OOM_LATE_WAIT_NS SECOND_NS /* a bound: work that came after those frees */
#define OOM_TRIES 8                /* after a change by another thread, before a wait: a bound */
#define OOM_LAST_TRIES 64          /* and after the last wait: a bound */
#define OOM_WAITS 16               /* waits whose memory other threads may take: a bound */
#define ABANDON_WAIT_NS (3 * OOM_WAIT_NS) /* for jobs of a pool that ends: a bound */
#define RELEASED_LATELY_NS (100 * MS_NS)  /* from a driver's failure to its report to the pool */

/* Fences (fence.c, ring.c). Measured by tests/bench/pair in the modes streams and fenced. */
#define RING_MAX 256           /* fences not known done; a bound */
#define RING_KEEP_PASSED 8     /* ordered ones, kept for what they tell */
#define FENCE_RUN 15           /* submissions in turn that make it one stream */
#define FENCE_LATELY 4096      /* epochs: some tens of batches; a bound */
#define FENCE_PATIENCE_FREES 4 /* a record costs as much as the rest of a pair */
/* Freed bytes that wait for more of their kind. With 128 MiB pairs of 64 MiB with a kernel, 4
 * threads, take 18.3 us, not 21.0, and synthetic programs on four streams peak at 1.21, not 1.16.
 */
#define FENCE_PATIENCE_BYTES (UINT64_C(4) << 20)
#define FENCE_PATIENCE_SHIFT 3            /* .. or this part of what is reserved */
#define LEAVE_TRIES 8                     /* where the driver has no event; a bound */
#define LEAVE_TIMEOUT_NS (60 * SECOND_NS) /* drivers before CUDA 12.5; a bound */

/* Pending memory (pending.c, alloc.c) */
#define PENDING_LOOK 64      /* items of the queue that one request looks at: lock time */
#define PENDING_BATCH 512    /* items retired at one go: 30 us of lock time */
#define PENDING_SELDOM 64    /* requests between two questions in vain: one takes as long as two */
#define PENDING_LOOK_SHIFT 6 /* more pending, of what is reserved: see pending_is_much */
/* Several streams, H200: they keep their overlap. With 1 GiB pairs beside busy streams take as
 * long. */
#define RUN_AHEAD_BYTES (UINT64_C(256) << 20)
#define RUN_AHEAD_SHIFT 4 /* .. or this part of what is live */
/* .. but no more than this part of the peak: replay of 400 MiB live on four streams peaks at 1.25,
 * not at 1.41. */
#define RUN_AHEAD_SMALL_SHIFT 2
#define RUN_AHEAD_MIN_BYTES (UINT64_C(64) << 20) /* .. or so much; 200 MiB live: 1.3, not 2.1 */
#define HOST_WAITS 16                            /* for one request: a bound */
#define HOST_WAIT_NS (SECOND_NS / 10)            /* each: a bound */

/* Magazines (magazine.h) */
#define MAGAZINE_BYTES (UINT64_C(8) << 20)       /* of one thread; a full one takes 7 us to empty */
#define MAGAZINE_BLOCK_BYTES (UINT64_C(2) << 20) /* blocks above do not count in MAGAZINE_BYTES */
#define MAGAZINE_LARGE_BYTES (UINT64_C(64) << 20) /* the one that may lie in it: pair, 64 MiB */
#define MAGAZINE_EMPTIED_AT_ONCE 8                /* a full one takes 7 us: lock time */
#define CAN_TELL_TURNS 5000                       /* of spin_pause: some 0.5 s; a bound */

/* Placement (placement.c) */
#define PLACEMENT_LOOK 16         /* blocks of a bin; replay: more change less than 0.1 % */
#define PLACEMENT_LOOK_HOLES 4096 /* holes and blocks beside them: lock time */

/* Segments that small blocks share (segment.c) */
#define SHARED_STEP_SHIFT 5                        /* a shared segment is this part of all */
#define SHARED_STEP_MAX_BYTES (UINT64_C(32) << 20) /* .. and no more than this */
#define ROUNDING_SHIFT 3                           /* of what is asked for: then blocks share */
#define ROUNDING_BYTES (UINT64_C(16) << 20)        /* rounding that never matters */

/* Chunks (chunk.c) */
#define CHUNK_BATCH 64                         /* released at one go: 20 us of lock time */
#define CHUNK_BATCH_BYTES (UINT64_C(16) << 30) /* .. and as much memory */
#define CHUNK_MOVES 256                        /* moved for one request: 0.5 us each, lock time */
#define CHUNK_LOOK 4096                        /* free blocks for one request: lock time */
#define CHUNK_LOOK_DEAD 1024                   /* blocks around dead ones: lock time */
#define DEAD_BYTES (UINT64_C(32) << 20)        /* dead memory that is worth the calls */
#define DEAD_SHIFT 4                           /* .. or this part of what is reserved */
#define GHOSTS_MAX 4                           /* devices of addresses; an arena has sixteen */
#define GHOSTS_AT_ONCE 1024                    /* looked at before others have the lock */

/* Growth of an arena (arena.c). Driver calls on an H200: to commit a chunk of 8 MiB takes 41 us,
 * and to give it back 36 us. A chunk of 64 MiB takes 43 us and 55 us. A gigabyte takes as long as
 * one handle or as one cuMemAlloc, half as long as two handles. */
/* With 4 GiB a replay peaked at 1.30, not 1.08. Blocks of 1 to 64 GiB beside small ones, up to 0.9
 * of an H200: with halves of the request 66 of 48,000 requests found no memory, with this none. */
#define ARENA_CHUNK_MAX_BYTES (UINT64_C(1) << 30)
/* Several chunks of so much in all: is there room for all of them? */
#define ARENA_ASK_BYTES (UINT64_C(64) << 20)
#define ARENA_FRAGMENTED_SHIFT 10                  /* of what is used, idle: then chunks are fine */
#define ARENA_FRAGMENTED_BYTES (2 * GRANULE_BYTES) /* .. but for so little */
/* Fine chunks are this part of the arena. Replay: with 8 the mean of 39 is 1.033, not 1.028, where
 * driver calls take no time. */
#define ARENA_FINE_SHIFT 10
/* .. or of what the request misses. Replay: with 4 a program has 1.14, not 1.09. */
#define ARENA_FINE_REQUEST_SHIFT 5
/* .. or this part of the arena, once the time budget is not full. Replay: with 7 the mean of 39 is
 * 1.038, not 1.031; with 9 it is 1.030, in 1.14 times the time. */
#define ARENA_SPENT_SHIFT 8
#define ARENA_SPENT_REQUEST_SHIFT 4 /* .. or then this part of what the request misses */
/* .. up to this. Replay of work_frugal.py graphs: 55 ms of driver calls, not 71, peak 1.014, not
 * 1.012; with 16 MiB 48 ms and 1.018; the mean of 39 programs is the same, in 0.97 of the time. */
#define ARENA_SPENT_REQUEST_MAX_BYTES (UINT64_C(8) << 20)
#define ARENA_COARSE 4 /* times larger than new chunks: taken apart, not moved */
/* Beyond the peak, while the time budget is used up. Replay: with 3 the mean of 39 is 1.044, not
 * 1.035. */
#define ARENA_SPARE_SHIFT 5
#define ARENA_FULL_SHIFT 1 /* .. as far as this part of the device */
/* Steps of growth. Without them, and without the memory that is_too_much allows for several
 * streams, ViT on four streams from cold (eight processes, H200) reserves 1.05 of what is live,
 * not 1.18, and takes 1.12 +- 0.09 times as long. With them its first 44 steps, alone on an H200,
 * take 1.28 s, and native 1.49 s; the driver's calls are 6 ms of it. */
#define ARENA_LARGE_STEP_SHIFT 7 /* the large zone grows by this part of all at least */
#define ARENA_LARGE_STEP_MAX_BYTES (UINT64_C(64) << 20)
#define ARENA_SMALL_STEP_SHIFT 5 /* the small zone, of itself: a small program stays small */
#define ARENA_SMALL_STEP_MAX_BYTES (UINT64_C(32) << 20)

/* The time budget (time_budget.c). Moves on a busy H200: 0.5 ms for access, 60 us for each
 * mapping. */
/* One part in so many of the time. With 512 an earlier pool took a replay of gpt2 from 1.02 to
 * 1.08. */
#define TIME_BUDGET_PART 128
/* Saved up. A program begins with all of it. With 5 ms the workload conv needs 5 percent more
 * memory. */
#define TIME_BUDGET_MAX_NS INT64_C(20000000)
#define TIME_BUDGET_DEBT_MAX_NS INT64_C(4000000000) /* debt beyond it is forgotten: a bound */

/* Segments (segment.c) */
#define SEGMENT_SHARED_MAX_BYTES (UINT64_C(4) << 20) /* blocks that may share a segment */
#define SEGMENT_FIT_SHIFT 3       /* of a request: an idle segment may be so much larger */
#define SEGMENT_SIZES_SHIFT 4     /* sizes of new segments to a doubling */
#define SEGMENT_SPARE_SHIFT 1     /* of a segment, at least: what a request may take of it */
#define SEGMENT_SLACK_SHIFT 3     /* of the peak: slack of all live segments */
#define SEGMENT_IDLE_SHIFT 3      /* beyond the peak, kept while the GPU is idle */
#define SEGMENT_KEPT_SHIFT 3      /* beyond the peak, allowed: more goes back at a free */
#define SEGMENT_FULL_SHIFT 1      /* of the device: from there on memory goes before time */
#define SEGMENT_FULL_KEPT_SHIFT 2 /* .. so no more than this part is allowed */
#define SEGMENT_PATIENCE_NS INT64_C(500000000) /* of debt; see plan_release in segment.c */
#define RELEASE_WAIT_NS SECOND_NS              /* ends unless work was done: a bound */
#define RELEASE_WAIT_COUNTS_NS (20 * MS_NS)    /* of one wait, as cost: the host ran ahead */

/* Other walks under the lock */
#define PEAK_LOOKS 512    /* free blocks at a peak of reserved memory, the largest first */
#define CLOCK_EVERY 1024  /* frees between two looks at the clock: IDLE_TIMEOUT wants no more */
#define RANGES_AT_ONCE 64 /* ranges handed out by pool_for_each_range: they lie on the stack */
#define RANGE_LOOKS 4096  /* granules looked at for them: lock time */
#define PARK_LOOKS 256    /* granules whose blocks pool_park_each looks at: lock time */
/* Free ranges from this on are not kept: by computation, 10 us of a copy at 25 GB/s, which is what
 * another copy costs. */
#define PARK_GAP_BYTES (UINT64_C(256) << 10)
#define PARK_SETTLE_NS (10 * MS_NS) /* for fences that have nothing left to wait for: a bound */
#define HOST_BATCH_BYTES 65536      /* host memory taken at once for records of one size */
#define HOST_PAGE_BYTES 4096        /* touched before a lock is taken */

#endif
