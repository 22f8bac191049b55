/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The caching pool of one CUDA context. Outsiders include only this header of pool/, and backend.h,
 * config.h, stats.h, bits.h, host_memory.h and spin.h. Any thread may call every function.
 * pool/README.md explains the model, the invariants and the locks.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "pool/backend.h"
#include "pool/config.h"
#include "pool/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

enum pool_status {
    POOL_OK,
    POOL_NOMEM,   /* all else was tried in vain; *code is the driver's own error */
    POOL_LIMIT,   /* the same because of MAX_RESERVED: the driver must not serve the call */
    POOL_PASS,    /* not for the pool (MIN_BLOCK, MAX_BLOCK, lost context): ask the driver */
    POOL_FOREIGN, /* no memory of any pool */
    POOL_INVALID, /* memory of a pool, but not the start of a live block */
};

/* The block that holds an address, and the pool that owns it. */
struct pool_block {
    struct pool *pool;
    uint64_t addr;            /* start of the block */
    uint64_t size_bytes;      /* as handed out */
    uint64_t requested_bytes; /* as asked for */
    uint64_t serial;          /* unique in the process: each reissue of an address gets a new one */
    uint64_t segment_addr;    /* the driver's allocation that holds it (segment backing), else 0 */
    bool exposed, sync_memops;
};

/* What the control thread may ask for. keep_bytes: idle memory to keep; 0: none. */
struct pool_trim {
    uint64_t keep_bytes;
    uint64_t most_bytes; /* no more than that has to go back; 0: all */
    uint64_t idle_ns;    /* only memory unused for so long at least; 0: any */
    uint64_t wait_ns;    /* how long to wait for pending memory; 0: not at all */
};

/* b is borrowed for the pool's life, config is copied. owner is the caller's own pointer, see
 * pool_owner. NULL if host memory is short. */
struct pool *pool_create(struct backend *b, const struct pool_config *config, void *owner);
/* Takes the options that are LIVE in config.def; the others stay as they are. Makes no driver call
 * and gives nothing back. What new limits ask for happens in the next pool_tick. The caller sees to
 * that call. Memory over a lower MAX_RESERVED goes back when it is idle; meanwhile the pool takes
 * none. */
void pool_set_config(struct pool *p, const struct pool_config *config);

/* The context has ended. The pool forgets every block, and gives memory back that outlives a
 * context (an arena's), or leaves that to pool_is_vacant, where a thread has some in work for too
 * long. The pool object stays for ever, because other threads may still look at it. It can become
 * the pool of another context, with the same backend and config (abandon.c). */
void pool_abandon(struct pool *p);
/* Is the pool abandoned, with no thread inside? Then it asks its backend for nothing but the time,
 * and the backend may be made that of another context. May call the backend before. */
bool pool_is_vacant(struct pool *p);
/* Makes it the pool of a new context, which the backend serves by now. Statistics go on. False: it
 * is not vacant. */
bool pool_revive(struct pool *p);

/* The context is lost: the driver gives the same error for ever. The pool hands nothing out after
 * the return; nor do magazines. */
void pool_lose(struct pool *p);

void *pool_owner(const struct pool *p);
bool pool_uses_arena(const struct pool *p);

/* *addr is a multiple of 512 bytes at least. *code is set for POOL_NOMEM and POOL_LIMIT only.
 * size_bytes > 0. */
enum pool_status pool_alloc(struct pool *p, uint64_t size_bytes, uint64_t *addr, int *code);
/* What became of a request that ended with POOL_NOMEM: the driver served the call that the program
 * had made, or the program gets the error. Counts it. */
void pool_note_nomem(struct pool *p, bool driver_served);

/* Frees a live block of whichever pool owns it. Never waits for the GPU, but for SYNC_FREE and
 * exposed blocks in segment backing. */
enum pool_status pool_free(uint64_t addr);

/* The two parts of pool_alloc and pool_free. The quick part uses the thread's magazine: it waits
 * for no lock, makes no call and leaves errno alone. 0 and false: it does not serve this call (p
 * may be NULL), and the caller calls the slow part. The quick part serves frees of a thread only
 * after pool_free_slowly has served one of that thread. */
uint64_t pool_alloc_fast(struct pool *p, uint64_t size_bytes);
bool pool_free_fast(uint64_t addr);
/* The calling thread's magazines are forgotten: for the only thread of a forked child. */
void pool_forget_thread(void);
enum pool_status pool_alloc_slowly(struct pool *p, uint64_t size_bytes, uint64_t *addr, int *code);
enum pool_status pool_free_slowly(uint64_t addr);

/* A segment may go back only when its own work, or even all work, is complete. No request may wait
 * for that: the work could be a kernel that waits for the program. A free of the program's waits
 * for all work without the pool. So where a pool in segment backing has more than it should, the
 * next such free gives memory back. When pool_release_due says so, the caller calls
 * pool_release_at_free after a slow free of that address, unless the free was stream-ordered. */
extern _Atomic bool pool_release_due;
void pool_release_at_free(uint64_t freed_addr);

/* Does a pool have memory at addr? Takes no lock, because a free of a pointer that is no pool's
 * must be cheap. */
bool pool_owns(uint64_t addr);

/* addr may point anywhere into a live block. POOL_OK, POOL_FOREIGN or POOL_INVALID (not live). In
 * the last case only block->pool is set. */
enum pool_status pool_lookup(uint64_t addr, struct pool_block *block);

/* The block that holds addr goes back to the driver when freed, and the pool never reissues it. */
enum pool_status pool_expose(uint64_t addr);
/* Sets a flag of an exposed block, which the pool only keeps for the caller. It is false at
 * first. */
enum pool_status pool_set_sync_memops(uint64_t addr, bool sync_memops);

/* To be called before GPU work is submitted, when pool_watch says so: records the fence of earlier
 * frees. stream tells streams apart, nothing more. */
#define POOL_WATCH_STREAMS 0x00003fffu  /* pools that rely on stream order, or may again */
#define POOL_WATCH_GATE 0x00004000u     /* a flag of the caller: no submission for now */
#define POOL_WATCH_ERRORS 0x00008000u   /* a flag of the caller, for another reason to look */
#define POOL_WATCH_UNSEALED 0xffff0000u /* pools with frees that no fence covers yet */
extern _Atomic unsigned pool_watch;
/* How often an epoch of frees was closed, in all pools. While POOL_WATCH_UNSEALED tells of no
 * frees, all frees so far are counted. */
extern _Atomic uint64_t pool_seals;
void pool_submit(struct pool *p, uint64_t stream);

/* The stream whose order a pool relies on. At most one pool of the process relies on one
 * (backend.single_stream). ANY: the first stream that work is submitted to becomes it, by compare
 * and exchange. NONE: no pool relies on one. A thread calls pool_leave_single_stream before it
 * submits work to another stream. */
#define POOL_STREAM_ANY UINT64_C(1)
#define POOL_STREAM_NONE UINT64_C(3)
extern _Atomic uint64_t pool_single_stream;
/* Orders all later work behind what stream order alone ordered so far. True: something was still
 * running. Idempotent. */
bool pool_leave_single_stream(struct pool *p);
/* Records the fence of frees so far, if there are any: for a caller that knows that none can be
 * recorded for a while. */
void pool_seal(struct pool *p);
/* A mark in time, to learn whether one stream is enough again: pool_passed says whether all work
 * submitted before the mark is complete. The caller must know that only this stream got work since
 * then, and that all other work asks to leave first. */
uint64_t pool_mark(struct pool *p);
/* Is all work before the mark complete? Asks the driver. */
bool pool_passed(struct pool *p, uint64_t mark);
/* Announces the stream in pool_single_stream, then looks whether work for another was noted in
 * *breach. Only after that memory is handed out in the order of the stream. */
bool pool_enter_single_stream(struct pool *p, uint64_t mark, uint64_t stream,
                              const atomic_bool *breach);
/* Is all work complete that was submitted so far? Asks the driver. Where only a wait could tell (no
 * context events), the caller's word counts that nothing was submitted. */
bool pool_is_idle(struct pool *p);
/* The single-stream mode will not come again: pool_watch need not tell of submissions for its
 * sake. */
void pool_give_up_single_stream(struct pool *p);

/* Gives idle memory back to the driver; returns the bytes given back. Waits for GPU work within
 * wait_ns only. For the control thread, or where the program waits anyway. */
uint64_t pool_trim(struct pool *p, const struct pool_trim *trim);
/* For a wait in turns, by a caller that has other work meanwhile. pool_settle returns a mark behind
 * all frees so far. pool_has_settled asks the driver whether the work before the mark is complete.
 * It is also true where asking cannot tell. In this case the pool is abandoned or lost, or there
 * are no context events. */
uint64_t pool_settle(struct pool *p);
bool pool_has_settled(struct pool *p, uint64_t mark);
/* Bytes that are idle, but that pool_trim cannot give back yet: GPU work that was not known
 * complete at the last look may use them. In the order of one stream they can be handed out all the
 * same. */
uint64_t pool_behind_work_bytes(struct pool *p);
/* The driver has no memory for another call of the program's: all idle memory goes back. IDLE:
 * memory that is idle, or becomes so without a wait. PENDING: also memory that was freed while work
 * was in flight. This step waits for that work, as the frees would without the pool, for 10 s at
 * most. It waits 1 s more behind work that came after the frees. True: this call gave some back, or
 * another thread did just now, or one that this call waited for. */
enum pool_release { POOL_RELEASE_IDLE, POOL_RELEASE_PENDING, POOL_RELEASE_STEPS };
bool pool_release(struct pool *p, enum pool_release step);
/* Does what limits and timeouts ask for now. To be called every pool_tick_ns() (0: no need), which
 * may have changed after it. Returns the bytes that went back; adds to *expired_bytes (NULL: not
 * asked) those of them that IDLE_TIMEOUT asked for. */
uint64_t pool_tick(struct pool *p, uint64_t *expired_bytes);
uint64_t pool_tick_ns(const struct pool *p);
/* How often these limits need a look where there is no pool; 0: never. */
uint64_t pool_config_tick_ns(const struct pool_config *config);

void pool_stats(struct pool *p, struct pool_stats *stats);
/* Would pool_stats return? False after some 0.5 s: a thread keeps a lock of the pool. That thread
 * is the caller's own, if it is in a signal handler that interrupted a call of this pool. */
bool pool_can_tell(struct pool *p);
/* Bytes reserved and not live: cuMemGetInfo should count them as free. */
uint64_t pool_idle_bytes(struct pool *p);

/* Calls f for each committed range of an arena that is not away, to change its access rights. The
 * backend's rows already know the new rights, so ranges committed afterwards have them. Waits for
 * commits and releases that are under way, and others wait for its end (job.h). f is called without
 * the lock. */
void pool_for_each_range(struct pool *p, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                         void *arg);

/* What the program holds, with the bytes that it asked for, and the device memory that the pool
 * holds, without what is away. Fills at most max. Returns how many there are. Holds the lock for
 * the whole walk, some 10 ns a block: for rare questions. While other threads allocate and free,
 * some of their blocks may be missing or be there although they are free. */
struct pool_range {
    uint64_t addr, size_bytes;
};
size_t pool_list_live(struct pool *p, struct pool_range *out, size_t max);
size_t pool_list_chunks(struct pool *p, struct pool_range *out, size_t max);

/* Park: device memory of an idle pool goes to the host, its addresses stay (pool/park.c has the
 * argument). The bytes are the caller's: it copies what pool_park_each names, to the host before
 * pool_park_end(p, true), and back after pool_wake_begin. In an arena only.
 *
 *     pool_park_hold -> pool_park_each -> pool_park_end(p, true): the held memory is away
 *                                     \-> pool_park_end(p, false): nothing has changed
 *     pool_wake_begin -> pool_park_each -> pool_wake_end: all memory is here again
 *                    \-> pool_park_end(p, true): it is away again, with nothing copied back
 *
 * One thread at a time calls these six for a pool. Any thread may allocate, free and ask
 * meanwhile, at each of these moments. Memory that is away serves requests as well, and costs no
 * driver call. What the pool needs beyond that it takes from the driver. From before pool_park_hold
 * until after pool_park_end(p, false) or pool_wake_end the caller sees to it that no GPU work runs
 * and none is submitted, that nothing is exposed, and that nobody calls pool_for_each_range. It
 * calls none of them while pool_abandon runs. Of an abandoned pool nothing is held or away. */
/* Chooses what may go, after all frees so far are settled: whole chunks in which nothing is or was
 * exposed, and with which no other thread is at work. From now on nothing of it is moved, released
 * or unmapped. keep_bytes: so much device memory stays, of what is away already nothing. Small
 * blocks stay first, then by address. most_bytes: no more than that has to go, and large chunks go
 * first; 0: all. What is away stays so, and may be joined. Returns the bytes held. 0: none, and
 * nothing has changed. */
uint64_t pool_park_hold(struct pool *p, uint64_t keep_bytes, uint64_t most_bytes);
/* Names what has to be kept of held memory: ranges in the order of addresses that do not overlap,
 * apart by 256 KiB at least or by memory that is not held. Each covers what is live, and may cover
 * free memory. Each stays mapped until pool_park_end or pool_wake_end. The lock is not held in f,
 * which may take as long as a copy. f returns false to end the walk; then this returns false.
 *
 * After pool_wake_begin it names what is live by then. Of that only what was named before has bytes
 * to be copied back: the rest was allocated while its memory was away, and never written. What was
 * named before and is not named now must not be touched: it may not be mapped. What is away is not
 * named by another park before a wake has ended. */
bool pool_park_each(struct pool *p, bool (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                    void *arg);
/* away: unmaps and releases what is held; returns its bytes. What the driver does not unmap is let
 * go, whole ranges that touch each other: pool_is_away says so. Else lets it go, which makes no
 * driver call, and returns 0. */
uint64_t pool_park_end(struct pool *p, bool away);
/* Brings all back that is away and not wholly free: creates, maps and allows it, and holds it until
 * pool_wake_end. Memory that is wholly free is not created again. It still counts as away until
 * pool_wake_end, and serves no request. 0: done, or nothing was away. Else the backend's code: all
 * that this call created is released, and everything is away as before. */
int pool_wake_begin(struct pool *p);
/* All bytes are where the program reads them: nothing is away any more. */
void pool_wake_end(struct pool *p);
/* Device memory that pool_wake_begin would create now: chunks that are free as a whole stay away.
 * Settles what was freed first, as pool_wake_begin does. */
uint64_t pool_wake_bytes(struct pool *p);
/* Bytes that are away. They are part of reserved_bytes, so the pool has reserved_bytes less
 * away_bytes of device memory. Takes no lock. */
uint64_t pool_away_bytes(const struct pool *p);
/* Bytes that stay because they, or something in the same chunk, are or were exposed. */
uint64_t pool_exposed_bytes(struct pool *p);
/* Is the memory at addr away? The driver does not know this address then. Of any address; false if
 * it is no pool's. Costs one load while nothing of the process is away; else takes a lock. */
bool pool_is_away(uint64_t addr);

/* NULL, or the words of the first broken invariant. Walks everything; for tests. */
const char *pool_check(struct pool *p);

#endif
