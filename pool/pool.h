/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The caching pool of one CUDA context: the only header of pool/ that outsiders include, besides
 * backend.h, config.h, stats.h and the helpers bits.h, host_memory.h and spin.h. Every function may be
 * called from any thread. pool/README.md explains the model, the invariants and the locks.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "pool/backend.h"
#include "pool/config.h"
#include "pool/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;

enum pool_status {
    POOL_OK,
    POOL_NOMEM,   /* the ladder ended; *code is the driver's own error */
    POOL_PASS,    /* not for the pool (limits of MIN/MAX_BLOCK, broken context): ask the driver */
    POOL_FOREIGN, /* no memory of any pool */
    POOL_INVALID, /* memory of a pool, but not the start of a live block */
};

/* Owner of the block that holds an address. */
struct pool_block {
    struct pool *pool;
    uint64_t addr;            /* start of the block */
    uint64_t size_bytes;      /* as handed out */
    uint64_t requested_bytes; /* as asked for */
    uint64_t serial;          /* unique in the process: a block reissued at the same address gets a new one */
    uint64_t segment_addr;    /* the driver's allocation that holds it (segment backing), else 0 */
    bool exposed, noted;
};

/* What the control thread may ask for. keep_bytes: idle memory to keep (0: give all back). */
struct pool_trim {
    uint64_t keep_bytes;
    uint64_t idle_ns;         /* only memory unused for at least so long; 0: any */
    uint64_t wait_ns;         /* how long to wait for pending memory; 0: not at all */
};

/* b and config are borrowed for the pool's life. owner is the caller's own pointer, see pool_owner.
 * NULL if host memory is short or the backend cannot even reserve addresses. */
struct pool *pool_create(struct backend *b, const struct pool_config *config, void *owner);

/* The context is gone. Forgets every block; memory that outlives a context (an arena's) is given
 * back. The pool object itself stays for ever: other threads may still look at it. It can become
 * the pool of another context, with the same backend and config (abandon.c). */
void pool_abandon(struct pool *p);
/* It was abandoned, and no thread that was inside then still is: it asks its backend for nothing
 * but the time, so that the backend may be made that of another context. */
bool pool_is_vacant(struct pool *p);
/* The pool of a new context, of which the backend tells by now. False: it is not vacant. Statistics
 * go on. */
bool pool_revive(struct pool *p);

/* The context is lost: the driver will give the same error for ever. Nothing is handed out after
 * the return, quick ways included. */
void pool_lose(struct pool *p);

void *pool_owner(const struct pool *p);
bool pool_uses_arena(const struct pool *p);

/* *addr is aligned to 512 bytes at least. *code is set for POOL_NOMEM only. size_bytes > 0. */
enum pool_status pool_alloc(struct pool *p, uint64_t size_bytes, uint64_t *addr, int *code);

/* Frees a live block of whichever pool it belongs to. Never waits for the GPU (but see SYNC_FREE and
 * exposed blocks in segment backing). */
enum pool_status pool_free(uint64_t addr);

/* The two parts of pool_alloc and pool_free. The quick one goes out of the thread's magazine and
 * into it, with no wait for a lock, no call, and errno untouched; 0 and false: it does not serve
 * here (p may be NULL), and the slow one has to be called. No free of a pool is served here before
 * pool_free_slowly has served one of the same thread. */
uint64_t pool_alloc_fast(struct pool *p, uint64_t size_bytes);
bool pool_free_fast(uint64_t addr);
/* The calling thread's quick ways end: for the only thread of a forked child. */
void pool_forget_thread(void);
enum pool_status pool_alloc_slowly(struct pool *p, uint64_t size_bytes, uint64_t *addr, int *code);
enum pool_status pool_free_slowly(uint64_t addr);

/* Segments may only be given back once their own work, or even all work, is complete, for which no request may
 * wait (it could be a kernel that waits for the program). A free of the program's natively waits for all. So
 * where a pool in segment backing has more than it should, the next such free pays: when pool_release_due says
 * so, to be called after a slow free of that address, unless the free was stream-ordered. */
extern _Atomic bool pool_release_due;
void pool_release_at_free(uint64_t freed_addr);

/* Does a pool have memory at addr? Takes no lock: a free of somebody else's pointer must cost next to nothing. */
bool pool_owns(uint64_t addr);

/* addr may point anywhere into a live block. POOL_OK, POOL_FOREIGN or POOL_INVALID (not live). */
enum pool_status pool_lookup(uint64_t addr, struct pool_block *block);

/* The block at addr (anywhere into it) goes back to the driver when freed and is never reissued. */
enum pool_status pool_expose(uint64_t addr);
/* A note of the caller's at a exposed block: at first there is none. */
enum pool_status pool_set_sync_memops(uint64_t addr, bool noted);

/* To be called before GPU work is submitted, when pool_watch says so: records the fence of what was
 * freed before. stream tells streams apart, nothing more. */
#define POOL_WATCH_STREAMS 0x00007fffu  /* number of pools that rely on stream order, or may again */
#define POOL_WATCH_ANSWERS 0x00008000u  /* the caller's own: submissions have to be looked at for another reason */
#define POOL_WATCH_UNSEALED 0xffff0000u /* number of pools with frees that no fence covers yet */
extern _Atomic unsigned pool_watch;
/* How often an epoch of frees was closed, in all pools. While POOL_WATCH_UNSEALED tells of no frees, all
 * frees so far were counted. */
extern _Atomic uint64_t pool_seals;
void pool_submit(struct pool *p, uint64_t stream);

/* The stream whose order a pool relies on; at most one pool of the process may (backend.single_stream).
 * ANY: the first that work is submitted to becomes it, by compare and exchange. NONE: no pool does. Work
 * for another stream has to call pool_leave_single_stream before it is submitted. */
#define POOL_STREAM_ANY UINT64_C(1)
#define POOL_STREAM_NONE UINT64_C(3)
extern _Atomic uint64_t pool_single_stream;
/* Orders all later work behind what stream order alone ordered so far. True: something was still
 * running. Idempotent. */
bool pool_leave_single_stream(struct pool *p);
/* Records the fence of what was freed so far, if there is any: for who knows that none can be recorded for a while. */
void pool_seal(struct pool *p);
/* A mark in time, and whether one stream is enough again: all work submitted before the mark is
 * complete. The caller vouches that only this stream got work since then, and that all other work
 * will ask to leave first. */
uint64_t pool_mark(struct pool *p);
/* Is it? Asks the driver. */
bool pool_passed(struct pool *p, uint64_t mark);
/* Announces the stream in pool_single_stream, then looks whether work for another was noted in *breach: before memory
 * is handed out in the stream's order. */
bool pool_enter_single_stream(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach);
/* Is all work that was submitted so far complete? Asks the driver; one that cannot tell without a wait (no
 * context events) is taken at his word that nothing was submitted. */
bool pool_is_idle(struct pool *p);
/* It will not be entered again: pool_watch need not tell of submissions for its sake. */
void pool_give_up_single_stream(struct pool *p);

/* Idle memory back to the driver; returns the bytes given back. Waits for no GPU work but within
 * wait_ns. To be called on the control thread, or where the program waits anyway. */
uint64_t pool_trim(struct pool *p, const struct pool_trim *trim);
/* The driver has no memory for another call of the program's: everything idle goes back. IDLE: what
 * is idle or becomes so without a wait. PENDING: also what was freed while work was in flight,
 * which the frees would natively have waited for: 10 s at most, and 1 s more behind work that came
 * after them. True: some went back, by this call, another thread just now, or one that this one
 * waited for. */
enum pool_release { POOL_RELEASE_IDLE, POOL_RELEASE_PENDING, POOL_RELEASE_STEPS };
bool pool_release(struct pool *p, enum pool_release step);
/* What limits and timeouts ask for now; to be called every pool_tick_ns() (0: no need) and after a
 * wake-up asked for by pool_wants_tick. */
uint64_t pool_tick(struct pool *p);
uint64_t pool_tick_ns(const struct pool *p);

void pool_stats(struct pool *p, struct pool_stats *stats);
/* Bytes reserved and not live: what cuMemGetInfo should count as free. */
uint64_t pool_idle_bytes(struct pool *p);

/* Calls f for each committed range of an arena (to change its access rights). New ranges committed
 * meanwhile are made by backend rows that already know the new rights. */
void pool_for_each_range(struct pool *p, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg);

/* NULL, or the words of the first broken invariant. Walks everything; for tests. */
const char *pool_check(struct pool *p);

#endif
