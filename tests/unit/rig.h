/* SPDX-License-Identifier: BSD-2-Clause */
/* A program on a pool on a model. It allocates, submits work and frees as a CUDA program under the
 * shim does. After each step it checks what the pool promises. Free of any test framework, so that
 * unit tests, fuzz targets and benchmarks share it. One thread, but see tests/unit/test_threads.c.
 */
#ifndef TESTS_UNIT_RIG_H
#define TESTS_UNIT_RIG_H

#include "pool/pool.h"
#include "scripts/replay/model.h"

#include <stdio.h>

#define MIB(n) ((uint64_t)(n) << 20)
#define KIB(n) ((uint64_t)(n) << 10)
#define GIB(n) ((uint64_t)(n) << 30)
#define MS(n) ((uint64_t)(n) * 1000000)

struct rig_block {
    uint64_t addr, size_bytes, owner;
    bool exposed;
    bool written; /* by a launch, if the rig looks at bytes */
};

/* Bytes on the host: see rig_park. */
struct rig_saved {
    uint64_t addr;
    uint32_t mark;
};

struct rig {
    struct model *model;
    struct pool_config config;
    struct pool *pool;
    struct rig_block *blocks; /* live, in no order */
    uint32_t count, room;
    uint64_t owners;         /* counts lifetimes of blocks */
    bool driver_serves;      /* what the pool has no memory for */
    bool several_streams;    /* the program uses more than one stream */
    unsigned single;         /* else the one it uses, 0 at first */
    unsigned run_stream;     /* of the latest launches */
    uint64_t run_mark;       /* pool_mark after the latest on another stream */
    atomic_bool breached;    /* work for another is noted since, as if by another thread */
    bool lost;               /* the test has broken the context: no memory is expected back */
    enum pool_status status; /* of the latest request */
    int code;
    const char *error;       /* the first broken promise, or NULL */
    bool has_bytes;          /* launches write, and rig_check reads: see rig_park */
    struct rig_saved *saved; /* what was copied of what is away, by address */
    size_t saved_count, saved_room;
    void (*park_hook)(struct rig *r); /* called while the pool's walk has dropped its lock */
    bool wakes;                       /* what comes back is away until all of it is there */
    uint64_t beside_bytes;            /* device memory that it took and did not give back, in all */
    FILE *log;                        /* each step as a line; NULL: none */
};

/* A rig with default options on a device of capacity_bytes. rig_start makes the pool, so that
 * options and the model's flags can be changed before. */
struct rig *rig_create(uint64_t capacity_bytes);
/* The same in segment backing, if segments, and with the program's first stream only, if single. */
struct rig *rig_in(uint64_t capacity_bytes, bool segments, bool single);
void rig_start(struct rig *r);
/* Calls of the backend come to hook from here on, which finds arg as hook_arg. */
void rig_hook(struct rig *r, void (*hook)(struct model *m, enum model_row row), void *arg);
/* Frees, trims and abandons everything and destroys the rig. NULL, or the first broken promise: of
 * any step, or that something is left. */
const char *rig_destroy(struct rig *r);

/* The first live block that has an address in the range; NULL: none has. */
struct rig_block *rig_find(struct rig *r, uint64_t addr, uint64_t size_bytes);

/* 0: status and code tell why not. */
uint64_t rig_alloc(struct rig *r, uint64_t size_bytes);
/* So many blocks of a size. addrs: gets their addresses; may be NULL. */
void rig_alloc_all(struct rig *r, uint64_t *addrs, unsigned count, uint64_t size_bytes);
void rig_free(struct rig *r, uint64_t addr);
void rig_free_all(struct rig *r);
/* Each step-th of addrs, from the first to the one before end. */
void rig_free_every(struct rig *r, const uint64_t *addrs, unsigned first, unsigned end,
                    unsigned step);
void rig_expose(struct rig *r, uint64_t addr);
/* Work on a stream that touches the whole block at addr (0: no memory). */
void rig_launch(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t addr);
/* The same, and the block is freed while that work is submitted, or runs. */
void rig_free_behind(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t addr);
/* A new block, freed behind such work, or at once. Its address. */
uint64_t rig_pending(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t size_bytes);
uint64_t rig_freed(struct rig *r, uint64_t size_bytes);
/* The program goes on with the stream of its latest launch alone, if the pool thinks that
 * enough. */
bool rig_enter_single(struct rig *r);
/* What lies in magazines goes back to the pool. */
void rig_empty_magazines(struct rig *r);
/* Gives back what is idle beyond keep_bytes; what is pending is waited for if wait says so. */
uint64_t rig_trim(struct rig *r, uint64_t keep_bytes, bool wait);
/* Everything freed so far is known complete. */
void rig_settle(struct rig *r);
/* Parks, as the shim does: waits for all work, copies what the pool names, and lets it go. Returns
 * the bytes that are away then, more than before. cancel: lets nothing go in the end. No capture
 * may be open. What a launch of an earlier time wrote is looked at (has_bytes). */
uint64_t rig_park(struct rig *r, uint64_t keep_bytes, uint64_t most_bytes, bool cancel);
/* Wakes, and copies back. 0, or the backend's code: all is as it was. Each use of memory comes here
 * first: launches and exposures do it themselves, and do nothing else if it fails. */
int rig_wake(struct rig *r);
/* The program writes the block, as if by work. */
void rig_write(struct rig *r, struct rig_block *b);
/* A new block, written. */
uint64_t rig_written(struct rig *r, uint64_t size_bytes);
/* What the program has written is what it reads. Nothing may be away. */
void rig_check_bytes(struct rig *r);

/* NULL, or the first broken promise so far, pool_check() among them. */
const char *rig_check(struct rig *r);
struct pool_stats rig_stats(struct rig *r);

#endif
