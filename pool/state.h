/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a pool is made of, for the files of pool/ alone; and its lock.
 *
 * One lock per pool. No thread holds it over a driver call. A thread that holds it takes no other
 * lock but the spin locks of the pool's magazines. While a thread has dropped the lock, the block
 * that it works on is BUSY, and the fence is pinned. So no other thread touches them.
 * `unlocked_jobs` counts the threads that commit, move or release memory, or walk over it (job.h).
 *
 * The parts of a pool are embedded by value: this header includes those of its parts.
 */
#ifndef POOL_STATE_H
#define POOL_STATE_H

#include "pool/fence.h"
#include "pool/host_memory.h"
#include "pool/pending.h"
#include "pool/pool.h"
#include "pool/slab.h"
#include "pool/spin.h"
#include "pool/time_budget.h"
#include "pool/zone.h"

#include <pthread.h>
#include <sched.h>

/* See job.h. */
enum job_kind { JOB_OF_MEMORY, JOB_WALK, JOB_KINDS };

struct jobs {
    unsigned running[JOB_KINDS], waiting[JOB_KINDS];
    uint64_t admissions[JOB_KINDS]; /* how often those of a kind that waited were admitted */
};

struct pool {
    pthread_mutex_t lock;
    struct backend *backend;
    _Atomic uint64_t tick_ns; /* see pool_tick_ns */
    void *owner;
    bool arena; /* arena backing; else segments */
    bool abandoned;
    bool holds_memory;       /* abandoned beside a job that did not end: see abandon.c */
    bool evicted;            /* the driver gave its memory to others: the context has ended */
    unsigned threads_inside; /* threads in a function that may drop the lock on its way */
    unsigned unlocked_jobs;  /* threads that commit, move or release memory, or walk over it */
    struct jobs jobs;        /* of those, who may run */
    uint64_t jobs_done;      /* how often one of those threads was through */
    uint64_t released_ns;    /* when idle memory went back last; 0: never */
    uint64_t now_ns;         /* coarse clock, read at slow moments */
    uint64_t serial;         /* of the last block handed out, but for magazines */
    struct time_budget time_budget; /* time left for saving memory */
    uint64_t planned_bytes;         /* threads without the lock are taking it from the driver */
    unsigned release_beyond_shift;  /* segment backing: see plan_release in segment.c; 0: none */
    uint64_t small_max_bytes;       /* larger blocks are of the large zone; see segment.h */
    struct zone small, large;
    struct list ghosts; /* GHOST blocks */
    uint64_t ghost_bytes;
    struct list parked;          /* chunks that are not HERE, by address; see park.c */
    _Atomic uint64_t away_bytes; /* stats.away_bytes, for readers without the lock */
    uint64_t slack_bytes;        /* segment backing: of live large blocks */
    struct slabs slabs;
    struct fences fences;
    struct pendings pendings;
    struct host_cache block_cache, chunk_cache, magazine_cache, slab_caches[SLAB_CLASSES];
    struct list magazines;
    struct pool_stats stats;
    uint64_t begin_ns;          /* when the pool was made */
    uint64_t looked_peak_bytes; /* what was reserved at the latest peak that peak_record saw */
    /* pool_set_config writes what is LIVE there; all else is never written again. */
    struct pool_config config;
    uint64_t most_reserved_bytes; /* MAX_RESERVED; or what there was when it fell below that */
    uint64_t stamped_since_ns;    /* IDLE_TIMEOUT is set since then; 0: always */
};

/* Most sections under the lock take less than a microsecond, so a waiting thread looks for a while
 * before it sleeps. tests/bench/LATENCY.md has the longest sections. */
static inline void state_init_lock(struct pool *p)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
#ifdef __GLIBC__
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&p->lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

/* Not recursive. A signal handler that asks the pool for memory in the middle of a section of its
 * own thread waits for ever. So it does without the pool: cuMemAlloc in a handler that interrupted
 * cuMemAlloc hung within 30 s (580.159, H200). */
static inline void state_lock(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
}

static inline void state_unlock(struct pool *p)
{
    pthread_mutex_unlock(&p->lock);
}

/* To be used instead of those two around whatever may drop the lock on its way: see abandon.c. */
static inline void state_enter(struct pool *p)
{
    state_lock(p);
    p->threads_inside++;
}

static inline void state_leave(struct pool *p)
{
    p->threads_inside--;
    state_unlock(p);
}

/* In the middle of long work: lets other threads have the lock. */
static inline void state_yield(struct pool *p)
{
    state_unlock(p);
    sched_yield();
    state_lock(p);
}

/* Lets other threads come to what the caller waits for: step 7 of job.h. look counts from 0 in each
 * loop. */
static inline void state_pause(struct pool *p, unsigned look)
{
    state_unlock(p);
    spin_pause_longer(look);
    state_lock(p);
}

/* A thread is through that worked without the lock: see jobs_done. */
static inline void state_job_done(struct pool *p)
{
    p->jobs_done++;
}

/* Would taking so much more from the driver break MAX_RESERVED? */
static inline bool state_over_limit(const struct pool *p, uint64_t more_bytes)
{
    uint64_t have = p->stats.reserved_bytes + p->planned_bytes, max = p->config.max_reserved_bytes;
    return have > max || more_bytes > max - have;
}

#endif
