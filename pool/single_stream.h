/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The single-stream mode: its beginning and its end. While the program submits work to one stream
 * only, later work runs behind earlier work. So the pool hands freed memory out at once, and still
 * records the newest fence as fence.h says. Before work on a second stream is submitted,
 * single_stream_leave orders all later work behind that fence. After it, what stream order promised
 * holds for every stream.
 *
 * The mode may come again (single_stream_enter). For that, all work ever submitted to other streams
 * must be known complete, and no thread may be about to submit more to them. Threads that submit
 * tell the pool, and read pool_single_stream (pool.h). shim/context/stream_watch.c has that part of
 * the argument.
 *
 * Who ends the mode, if several threads come:
 * 1. The first one does the work (`leaver`). It drops the lock for calls of the driver. The others
 *    wait, since no work for another stream may be submitted before.
 * 2. What makes the end safe is a fence that covers all frees up to the time when magazines saw
 *    that the mode ends, and behind which later work is ordered. Memory that is freed later waits
 *    for its own fence. So each thread that comes may do the whole work beside another one: it
 *    looks at the frees up to its own time, which are more. The first one that is through ends the
 *    mode.
 * 3. A thread does so if the one that leaves takes too long, or is the caller itself, which is a
 *    signal handler then, or was left by a jump. So each wait is bounded, and a handler's work is
 *    submitted only after all earlier frees were ordered before it.
 * 4. A record under way may be the caller's own, too. A record of its own that comes later covers
 *    the same frees (fence.h, Safety 3).
 * 5. A thread that comes back finds by `mode_ends` that the mode was ended. It changes nothing
 *    then, for the pool may be in the mode again, or be ended.
 *
 * All functions want the pool's lock held. Those that drop it for driver calls say so.
 */
#ifndef POOL_SINGLE_STREAM_H
#define POOL_SINGLE_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fences;
struct pool;

/* After fence_init or fence_restart: the mode that a context begins in. Publishes it. */
void single_stream_init(struct fences *f, bool single_stream);
/* Before fence_finish, which publishes that nothing is ready any more. */
void single_stream_finish(struct fences *f);

/* Ends the single-stream mode, or returns when another thread has. True: the GPU or the host had to
 * wait. Drops the lock. */
bool single_stream_leave(struct pool *p);
/* Enters the mode again, for this stream. `mark` is an open epoch of the past. False: work
 * submitted before it may still run, or other work was noted in *breach. False too if memory is
 * pending whose fence could not be ordered before other streams' later work. False also while a
 * thread records a fence, and for a pool that is lost or unwatched. The caller must make sure that
 * all later work is this stream's, or is noted in *breach before the submitting thread reads
 * pool_single_stream. */
bool single_stream_enter(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach);
/* Submissions need not call the pool any more for the sake of stream order. */
void single_stream_unwatch(struct pool *p);

#endif
