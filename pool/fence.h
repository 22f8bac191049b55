/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When may freed memory be used again? The pool counts frees in epochs. A free joins the open
 * epoch. The next work that the program submits, or a request for the memory, seals the epoch.
 * Sealing closes the epoch. Then the pool records one fence, which captures everything submitted so
 * far.
 *
 * Safety.
 * 1. The program submits all work that may touch a block before it frees the block.
 * 2. The free joins epoch e. Epoch e closes after that, and its fence is recorded after that.
 * 3. So the fence of e, and of any later epoch, captures all that work. Once such a fence is done,
 *    or ordered before all later work, the pool may hand the block out.
 * 4. Threads may record fences in another order than that of the epochs. Each fence is recorded
 *    after its own epoch closed, and the argument uses no more.
 * 5. What stream order alone makes safe needs no fence: see single_stream.h.
 *
 * Liveness. A wait, on the host or on the GPU, must not wait for work that the program submitted
 * after the free. Otherwise a persistent kernel would stop a program that runs without the library.
 * 1. Between the free and the record the program submits no work: submission itself records first
 *    (pool_submit), and waits for a record under way.
 * 2. This cannot be kept in three cases. A capture forbids the record and work follows, the ring is
 *    full, or a submission would have to wait too long. Then the fence is *late*: the pool may
 *    query it, and never waits for it.
 * 3. So whatever the pool waits for, the driver's own free would have waited for too.
 * 4. A record that a capture forbids leaves its frees in the open epoch. It counts in `refusals`
 *    before it is over. A submission without the lock that saw neither the marks nor the record
 *    sees that count change.
 *
 * Few records. A record costs about as much as the rest of a pair, and a few small frees are often
 * not worth a wait.
 * 1. While work of several streams follows the frees and memory is not scarce, a submission leaves
 *    the epoch open and marks it late. In that case requests take new memory before they wait
 *    (alloc.c).
 * 2. The next free takes the mark away, because the driver's own free would have waited for that
 *    work.
 * 3. When enough was freed the fence is *wanted*, and the next submission records it.
 * 4. A thread that records counts in `sealing` before it takes the marks away. A submission marks
 *    the epoch late before it reads `sealing`. So one of the two sees the other.
 * 5. In the single-stream mode each submission that follows frees records, unless Liveness 2
 *    forbids it. If a submission left the record out, the fence of these frees would be late until
 *    the next free. The end of the mode orders later work behind the fences of all frees
 *    (single_stream_leave). With a late fence, later work would wait for work that was submitted
 *    after the free. So the pool would have to hold that memory back, and the end of the mode would
 *    have to leave it out. That would save 0.3 percent of the time of PyTorch's programs with
 *    random shapes (tests/bench/RESULTS.md).
 *
 * Without the lock. A free into a magazine (magazine.h) joins by fence_join_unlocked alone.
 * 1. It reads the open epoch after its block's last work was submitted.
 * 2. A record of that epoch comes after the epoch's close. The driver takes the submissions to a
 *    context, the record among them, one after the other. If the record had come before that work,
 *    the free would have seen the close.
 * 3. Closing takes the marks away first and then counts the epoch up. So a thread that reads the
 *    new epoch also sees that it has to mark it unsealed again.
 * 4. Unsealed and late are one word, so that one look tells both.
 * 5. pool_watch is counted up before the epoch is marked unsealed. It is counted down after the
 *    mark was taken away and pool_seals was counted up. So the freeing thread submits nothing that
 *    misses its free.
 *
 * These need no lock: fence_join_unlocked, fence_mark_unsealed, fence_want, fence_may_submit, and
 * functions that only read atomic fields. All other functions want the pool's lock held. Those that
 * drop it for driver calls say so.
 */
#ifndef POOL_FENCE_H
#define POOL_FENCE_H

#include "pool/ring.h"
#include "pool/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;

#define FENCE_READY_LOST UINT64_C(0) /* the context is lost: the pool hands nothing out */
#define FENCE_READY_ALL (UINT64_MAX - 1)
#define FENCE_READY_NEVER UINT64_MAX /* later than that */

/* UNSEALED: the open epoch has frees. FOLLOWED: work was submitted since the latest of them, so
 * the fence will be late. */
enum { FENCE_WORK_FOLLOWED = 1, FENCE_UNSEALED = 2 };

enum fence_mode { FENCE_SINGLE, FENCE_LEAVING, FENCE_MULTI };

/* Waits that could be avoided: of a request that may order, of a free that gives memory back
 * (pool_release_at_free). They are noted apart: with one note for both, peak reserved of maskrcnn
 * is 1.43 of peak live, not 1.15 (segments, four streams). */
enum fence_waiter { FENCE_WAIT_REQUEST, FENCE_WAIT_RELEASE, FENCE_WAITS };

struct fences {
    struct ring ring;
    _Atomic uint64_t open_epoch;      /* frees join it now; written under the lock */
    _Atomic uint64_t ready;           /* fence_ready_epoch; FENCE_READY_ALL: one stream, no wait */
    uint64_t complete_epoch;          /* the work of frees up to here is done */
    uint64_t ordered_epoch;           /* all future work runs behind that of frees up to here */
    uint64_t vain_epoch[FENCE_WAITS]; /* an avoidable wait for it ended in vain */
    atomic_uchar marks;              /* FENCE_WORK_FOLLOWED and FENCE_UNSEALED, of the open epoch */
    atomic_bool wanted;              /* the next submission records it */
    _Atomic uint64_t patience_bytes; /* freed before a fence is wanted; 0: any free */
    uint64_t open_bytes;             /* in the open epoch, without what lies in magazines */
    unsigned open_frees;
    uint64_t late_epoch;         /* the newest whose fence is late */
    _Atomic uint64_t run_stream; /* the stream of the work after the latest frees */
    _Atomic unsigned run_length; /* and its submissions in turn, up to FENCE_RUN */
    _Atomic unsigned sealing;    /* records under way */
    uint64_t several_epoch;    /* open when a request last saw several streams at work; 0: never */
    bool sealing_late;         /* work was submitted while one was under way */
    _Atomic unsigned refusals; /* records that captures forbade */
    bool refused;              /* the latest record was refused */
    bool barred;               /* and no capture is known whose end could be awaited */
    bool watches;              /* counts in pool_watch: relies on stream order, or may again */
    bool lost;                 /* the context is broken: nothing becomes ready any more */
    enum fence_mode mode;
    const void *leaver; /* while the mode is LEAVING: the thread that does it; single_stream.h */
    uint64_t mode_ends; /* how often the single-stream mode has ended */
};

/* *f must be all zero. single_stream_init comes next, and publishes the mode. */
void fence_init(struct fences *f);

/* The epoch that these freed bytes belong to. Makes submissions see the free (pool_watch). */
uint64_t fence_join(struct pool *p, uint64_t size_bytes);
static inline bool fence_is_unsealed(const struct fences *f)
{
    return atomic_load(&f->marks) & FENCE_UNSEALED;
}
/* Marks the open epoch unsealed, and counts it in pool_watch. */
void fence_mark_unsealed(struct fences *f);
/* Is the open epoch unsealed and not late? Then the driver's own free would wait for the work
 * between earlier frees and this one. A thread that sees this also sees the count in pool_watch, or
 * a later pool_seals. */
static inline bool fence_open_is_on_time(const struct fences *f)
{
    return atomic_load_explicit(&f->marks, memory_order_acquire) == FENCE_UNSEALED;
}
/* To be read before fence_open_is_on_time. */
static inline uint64_t fence_open_epoch(const struct fences *f)
{
    return atomic_load_explicit(&f->open_epoch, memory_order_acquire);
}
static inline uint64_t fence_join_unlocked(struct fences *f)
{
    uint64_t epoch = fence_open_epoch(f);
    if (!fence_open_is_on_time(f))
        fence_mark_unsealed(f);
    return epoch;
}
/* Marks the fence wanted if so many frees, or bytes, of the open epoch are enough. */
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
/* For fence_had_several_streams: notes what a request sees that finds nothing ready. */
static inline void fence_note_streams(struct fences *f)
{
    if (fence_several_streams(f))
        f->several_epoch = f->open_epoch;
}
/* Were several streams at work lately, as far as requests noted it? */
static inline bool fence_had_several_streams(const struct fences *f)
{
    return f->several_epoch && f->open_epoch - f->several_epoch < FENCE_LATELY;
}
/* Would the next submission record the open epoch's fence? */
bool fence_is_wanted(const struct fences *f);
/* A wait for this epoch that could have been avoided was in vain, unless the epoch is complete. */
static inline void fence_note_vain(struct fences *f, enum fence_waiter waiter, uint64_t epoch)
{
    if (f->complete_epoch < epoch)
        f->vain_epoch[waiter] = epoch;
}
/* Was such a wait in vain, for work that is still not known done? Then none is made again. */
static inline bool fence_was_vain(const struct fences *f, enum fence_waiter waiter)
{
    return f->complete_epoch < f->vain_epoch[waiter];
}
/* The pool may hand out frees up to this epoch. */
uint64_t fence_ready_epoch(const struct fences *f);

/* Tells the magazines which epochs are ready. To be called after each change of the mode, or of
 * what is done or ordered. Once the context is lost nothing in a magazine is ready. */
void fence_publish(struct fences *f);
/* The context reports an error that will stay: the pool hands nothing out again. */
void fence_lose(struct pool *p);

/* Is there a recorded fence that is not known done? */
bool fence_is_running(const struct fences *f);
/* The newest epoch that a thread may wait for, the open one included; 0: none. */
uint64_t fence_newest_waitable(const struct fences *f);

/* The newest epoch with a fence, late or not; 0: none. */
uint64_t fence_newest_recorded(const struct fences *f);

/* Closes the open epoch and records its fence. Drops the lock. */
void fence_seal(struct pool *p);
/* The same with an epoch that has no frees: the fence covers all epochs so far. It is late, because
 * no free needs a wait for it. Returns its epoch. */
uint64_t fence_seal_anew(struct pool *p);
/* Waits for the records that other threads have under way. False: some are under way, because a
 * signal handler in such a thread calls, or OOM_WAIT_NS have passed. Drops the lock. */
bool fence_await_records(struct pool *p);
/* Seals. Where a capture forbids that, the host waits up to timeout_ns for the capture's end.
 * False: the capture goes on. Drops the lock. */
bool fence_seal_patiently(struct pool *p, uint64_t timeout_ns);
/* The program is about to submit work to a stream. True: nothing has to be recorded before. Without
 * the lock. */
bool fence_may_submit(struct fences *f, uint64_t stream);
/* To be called where fence_may_submit is false: records. Drops the lock. */
void fence_submit(struct pool *p);
/* Asks the driver what is done, with few queries. True: complete_epoch moved. Drops the lock. */
bool fence_poll(struct pool *p);
/* Is the newest recorded fence of that epoch or a later one, and done? Asks the driver. Drops the
 * lock. */
bool fence_newest_is_done(struct pool *p, uint64_t epoch);
/* Is all work complete that was submitted so far? Drops the lock. */
bool fence_is_idle(struct pool *p);
/* Orders all later work behind the oldest fence that covers epoch and is not late. With late_too a
 * late fence serves as well, where no other is left and safety goes before liveness. True:
 * ordered_epoch moved. Drops the lock. */
bool fence_order(struct pool *p, uint64_t epoch, bool late_too);
/* The host waits for the same fence, at most timeout_ns. True: complete_epoch moved. Drops the
 * lock. */
bool fence_wait(struct pool *p, uint64_t epoch, bool late_too, uint64_t timeout_ns);
/* Takes the marks of the open epoch away: submissions need not seal it any more. */
void fence_clear_marks(struct fences *f);
/* After single_stream_finish: the pool is lost, and every event is destroyed. The context may be
 * gone. Drops the lock. */
void fence_finish(struct pool *p);
/* After fence_finish, once no thread is inside any more: for a new context. Epochs go on, so that
 * none comes twice. single_stream_init comes next, and publishes the mode. */
void fence_restart(struct fences *f);

#endif
