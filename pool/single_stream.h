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

/* Ends the single-stream mode. If several threads come, the first does the work and the others wait
 * for it. True: the GPU or the host had to wait. Drops the lock. */
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
