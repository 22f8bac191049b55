/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When may freed memory be used again? Frees are counted in epochs. A free joins the open epoch; the
 * next work that the program submits, or a request for the memory, seals it: the epoch closes and one
 * fence is recorded that captures everything submitted so far.
 *
 * Safety. All work that may touch a block was submitted before its free, its free joined epoch e, e
 * was closed after that and its fence recorded after that. So the fence of e, and of any later epoch,
 * captures all of it: once such a fence is done, or ordered before all later work, the block may be
 * handed out. Fences may be recorded out of turn by several threads; each is recorded after its own
 * epoch was closed, which is all that the argument uses. What stream order alone makes safe needs no
 * fence: see single_stream.h.
 *
 * Liveness. A wait, on the host or on the GPU, must wait for nothing that the program submitted after
 * the free, or a persistent kernel would stop a program that runs without us. Between the free and
 * the record no work of the program is submitted, because submission itself records first (pool_submit)
 * and waits for a record under way. Where that cannot be kept (a capture forbids the record, and work follows; the
 * ring is full; a submission would have to wait too long) the fence is *late*: it may be queried, never
 * waited for. Whatever is waited for, the driver's own free would have waited for too. A record that a capture
 * forbids leaves its frees in the open epoch, and counts in `refusals` before it is over: a submission without the
 * lock that saw neither the marks nor the record sees that.
 *
 * Few records. A record costs about as much as the rest of a pair, and what was freed since the latest is
 * often too little for anybody to want to wait for it. While work of several streams follows the frees (memory
 * is then spent before anybody waits, see request.c) and memory is not scarce, a submission leaves the
 * epoch open and marks it late; the next free takes the mark away, since natively it would have waited for
 * that work. When enough was freed the fence is *wanted*, and the next submission records. Who records counts
 * himself in `sealing` before he takes the marks away, and a submission marks the epoch late before it reads
 * `sealing`: one of them sees the other.
 *
 * Without the lock. A free into a magazine (magazine.h) joins by fence_join_unlocked alone: it reads the
 * open epoch after its block's last work was submitted. A record of that epoch comes after the
 * epoch's close, and the driver takes the submissions to a context, the record among them, one after
 * the other: had the record come before that work, its close would have been seen. Closing takes the
 * marks away first and counts the epoch up then, so that whoever reads the new epoch also sees that it
 * has to mark it unsealed again. Unsealed and late are one word, so that one look tells both. pool_watch is counted
 * up before the epoch is marked unsealed, and down after the mark was taken away and pool_seals counted up: the thread
 * of a free that found it submits nothing that is not told of it.
 *
 * All functions but that want the pool's lock held; those that say so drop it for driver calls.
 */
#ifndef POOL_FENCE_H
#define POOL_FENCE_H

#include "pool/ring.h"
#include "pool/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;

#define FENCE_READY_LOST UINT64_C(0) /* the context is lost, nothing is handed out */
#define FENCE_READY_ALL (UINT64_MAX - 1)
#define FENCE_READY_NEVER UINT64_MAX /* later than that */

/* It has frees; work was submitted since the last of them. */
enum { FENCE_NO_WAIT = 1, FENCE_UNSEALED = 2 };

enum fence_mode { FENCE_SINGLE, FENCE_LEAVING, FENCE_MULTI };

struct fences {
    struct ring ring;
    _Atomic uint64_t open_epoch; /* joined by frees now; written under the lock */
    _Atomic uint64_t ready;  /* what fence_ready_epoch says; FENCE_READY_ALL: one stream, nothing waits */
    uint64_t complete_epoch; /* frees up to here: their work is done */
    uint64_t ordered_epoch;  /* frees up to here: all future work runs behind theirs */
    uint64_t vain_epoch;     /* the newest that a wait which need not have been ended in vain for */
    atomic_uchar marks;      /* of the open epoch */
    atomic_bool wanted;      /* the next submission records it */
    _Atomic uint64_t patience_bytes; /* freed in an epoch before its fence is wanted; 0: one free is enough */
    uint64_t open_bytes;     /* freed in the open epoch, but for what lies in magazines */
    unsigned open_frees;
    uint64_t late_epoch;     /* newest whose fence is late */
    _Atomic uint64_t run_stream; /* who submitted the work after the latest frees */
    _Atomic unsigned run_length; /* and how often in turn, up to FENCE_RUN */
    _Atomic unsigned sealing; /* records under way */
    bool sealing_late;       /* work was submitted while one was under way */
    _Atomic unsigned refusals; /* records that captures forbade */
    bool refused;            /* the latest was one */
    bool barred;             /* and there is nothing to wait for */
    bool watches;            /* counted in pool_watch as relying on stream order, now or again */
    bool lost;               /* the context is broken: nothing becomes ready any more */
    enum fence_mode mode;
};

/* *f must be all zero. single_stream_init comes next, and publishes. */
void fence_init(struct fences *f);

/* The epoch that so many bytes freed now belong to. Arms pool_watch. */
uint64_t fence_join(struct pool *p, uint64_t size_bytes);
static inline bool fence_is_unsealed(const struct fences *f)
{
    return atomic_load(&f->marks) & FENCE_UNSEALED;
}
/* Counts the open epoch among those that submissions have to seal. */
void fence_arm(struct fences *f);
/* It is, and not late: the driver's own free would wait for whatever came between earlier frees and this one.
 * Who sees that sees it counted in pool_watch, or already in pool_seals. */
static inline bool fence_is_armed(const struct fences *f)
{
    return atomic_load_explicit(&f->marks, memory_order_acquire) == FENCE_UNSEALED;
}
/* To be read before the look whether it is armed. */
static inline uint64_t fence_open_epoch(const struct fences *f)
{
    return atomic_load_explicit(&f->open_epoch, memory_order_acquire);
}
static inline uint64_t fence_join_unlocked(struct fences *f)
{
    uint64_t epoch = fence_open_epoch(f);
    if (!fence_is_armed(f))
        fence_arm(f);
    return epoch;
}
/* Is that enough for the epoch's fence to be wanted? */
static inline void fence_want(struct fences *f, unsigned frees, uint64_t bytes)
{
    if ((frees >= FENCE_PATIENCE_FREES ||
         bytes >= atomic_load_explicit(&f->patience_bytes, memory_order_relaxed)) &&
        !atomic_load_explicit(&f->wanted, memory_order_relaxed))
        atomic_store_explicit(&f->wanted, true, memory_order_relaxed);
}
/* Did work of more than one stream follow the latest frees? */
static inline bool fence_several_streams(const struct fences *f)
{
    return atomic_load_explicit(&f->run_length, memory_order_relaxed) < FENCE_RUN;
}
/* Would the next submission record the open epoch's fence? */
bool fence_is_wanted(const struct fences *f);
/* A thread that had another way has waited for the epoch: in vain, unless it is complete by now. */
static inline void fence_note_vain(struct fences *f, uint64_t epoch)
{
    f->vain_epoch = epoch > f->vain_epoch ? epoch : f->vain_epoch;
}
/* Was there such a wait, for work that is still not known done? Nobody who has another way waits again. */
static inline bool fence_was_vain(const struct fences *f)
{
    return f->complete_epoch < f->vain_epoch;
}
/* Frees up to this epoch may be handed out. */
uint64_t fence_ready_epoch(const struct fences *f);

/* Tells the magazines what is ready, after any change of the mode or of what is done or ordered. Once a context is
 * lost nothing in a magazine may be handed out either. */
void fence_publish(struct fences *f);
/* The context reports an error for ever: nothing may be handed out again. */
void fence_lose(struct pool *p);

/* Is one that was recorded not known done? */
bool fence_is_running(const struct fences *f);
/* The newest epoch whose frees may be waited for, the open one included; 0: none. */
uint64_t fence_newest_waitable(const struct fences *f);

/* The newest whose fence is there, late or not; 0: none. */
uint64_t fence_newest_recorded(const struct fences *f);

/* Closes the open epoch and records its fence. Drops the lock. */
void fence_seal(struct pool *p);
/* Other threads' records that are under way are over afterwards. Drops the lock. */
void fence_await_records(struct pool *p);
/* Seals; where a capture forbids that, the host waits for its end for a while. False: it goes on. Drops the lock. */
bool fence_seal_patiently(struct pool *p, uint64_t timeout_ns);
/* The program is about to submit work to a stream: true: nothing has to be recorded before. Without the lock. */
bool fence_pass(struct fences *f, uint64_t stream);
/* If it is not so: records. Drops the lock. */
void fence_submit(struct pool *p);
/* Asks the driver what is done, with few queries; true: complete_epoch moved. Drops the lock. */
bool fence_poll(struct pool *p);
/* Is the newest that was recorded of that epoch or a later one, and done? Asks the driver. Drops the lock. */
bool fence_newest_is_done(struct pool *p, uint64_t epoch);
/* Is all work that was submitted so far complete? Drops the lock. */
bool fence_is_idle(struct pool *p);
/* All later work behind the oldest fence that covers epoch and is not late (with late_too: also a late
 * one, where nothing else is left and safety goes before liveness); true: ordered_epoch moved. Drops
 * the lock. */
bool fence_order(struct pool *p, uint64_t epoch, bool late_too);
/* The host waits for the same fence, for a bounded time; true: complete_epoch moved. Drops the lock. */
bool fence_wait(struct pool *p, uint64_t epoch, bool late_too, uint64_t timeout_ns);
/* Submissions need not seal the open epoch any more. */
void fence_disarm(struct fences *f);
/* After single_stream_finish: the pool is lost, and every event is destroyed. The context may be gone. Drops the
 * lock. */
void fence_finish(struct pool *p);
/* After that, once nobody is inside any more: for a new context. Epochs go on, so that none comes
 * twice. single_stream_init comes next, and publishes. */
void fence_restart(struct fences *f);

#endif
