/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the canary's files share: its options, one worker's state, and the pseudo-pool that ignores
 * fences. See canary.c for what the canary proves. A worker belongs to its thread; the counters of
 * struct canary are atomic; the pseudo-pool has a lock of its own.
 */
#ifndef TESTS_GPU_CANARY_H
#define TESTS_GPU_CANARY_H

#include "tests/gpu/driver.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Where work is submitted. */
#define STREAM_KINDS(KIND)                                                                         \
    KIND(LEGACY, "legacy")                                                                         \
    KIND(BLOCKING, "blocking")                                                                     \
    KIND(NON_BLOCKING, "non-blocking")                                                             \
    KIND(PER_THREAD, "per-thread")                                                                 \
    KIND(GRAPH, "graph")

/* How the new owner of a block writes to it. Those without a stream run on the legacy stream. */
#define USE_KINDS(KIND)                                                                            \
    KIND(FILL_KERNEL, "fill kernel")                                                               \
    KIND(COPY_KERNEL, "copy kernel")                                                               \
    KIND(MEMSET_ASYNC, "memset async")                                                             \
    KIND(MEMSET_SYNC, "memset")                                                                    \
    KIND(HTOD_PAGEABLE, "copy from pageable host memory")                                          \
    KIND(HTOD_ASYNC, "async copy from pinned host memory")                                         \
    KIND(DTOD_SYNC, "device copy")                                                                 \
    KIND(DTOD_ASYNC, "async device copy")

/* What is asked for after the free: the same size, half of it, or all neighbours as one. */
#define REQUEST_KINDS(KIND)                                                                        \
    KIND(SAME, "same size")                                                                        \
    KIND(SMALLER, "smaller")                                                                       \
    KIND(COALESCED, "coalesced")

#define STREAM_ENUM(name, text) STREAM_##name,
#define USE_ENUM(name, text) USE_##name,
#define REQUEST_ENUM(name, text) REQUEST_##name,
enum stream_kind { STREAM_KINDS(STREAM_ENUM) STREAM_KIND_COUNT };
enum use_kind { USE_KINDS(USE_ENUM) USE_KIND_COUNT };
enum request_kind { REQUEST_KINDS(REQUEST_ENUM) REQUEST_KIND_COUNT };

struct canary_options {
    unsigned long rounds; /* per thread */
    unsigned threads;
    uint64_t seed;
    uint64_t late_ns;    /* how long the old work stays in flight */
    uint64_t size_bytes; /* largest block */
    bool broken;         /* allocate from the pseudo-pool */
    bool legacy_only;    /* never use a stream but the legacy one */
    bool flush;          /* SIGUSR1 and setenv requests meanwhile */
    bool empty;          /* a setenv request before each round: then little else can be reused */
    unsigned long runs;  /* launches on the old work's stream before each round, with memory that
                            comes and goes */
    bool stats;
};

struct canary {
    struct canary_options options;
    CUcontext context;
    CUfunction fill, copy, check, spin_fill, spin_check;
    atomic_ulong reused;      /* old addresses that came back */
    atomic_ulong in_flight;   /* of those, while the old work had not ended */
    atomic_ulong overwritten; /* rounds in which old work overwrote a new block */
    atomic_ulong seen_early;  /* rounds in which old work read the new owner's data */
};

struct worker {
    struct canary *canary;
    unsigned index;
    uint64_t random;
    CUstream stream[STREAM_KIND_COUNT]; /* made at first use */
    CUdeviceptr source;                 /* options.size_bytes * 4, like both host buffers */
    CUdeviceptr errors;                 /* two words: seen early, overwritten */
    uint32_t *pageable;
    uint32_t *pinned;
};

/* A block of `size_bytes` from the program's allocator, or from the pseudo-pool. */
CUdeviceptr canary_alloc(const struct canary *canary, size_t size_bytes);
void canary_free(const struct canary *canary, CUdeviceptr block, size_t size_bytes);

/* One round; reports on stderr and counts what went wrong. */
void canary_round(struct worker *worker);

#endif
