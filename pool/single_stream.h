/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The time of one stream: its beginning and its end. While the program submits work to one stream only, later
 * work runs behind earlier work, so freed memory is handed out at once, with the newest fence still recorded
 * as fence.h says. Before work on a second stream is submitted, single_stream_leave orders all later work behind that
 * fence: after it, what stream order promised holds for every stream. The time of one stream may come again
 * (single_stream_enter): when everything that was ever submitted to others is known complete, and nothing can be on its
 * way to them. Who submits tells, and reads pool_single_stream (pool.h): shim/context/stream_watch.c has that part of the argument.
 *
 * All want the pool's lock held; those that say so drop it for driver calls.
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

/* End of the single-stream mode, whoever comes first; the others wait for him. True: work had to wait
 * for it, on the GPU or on the host. Drops the lock. */
bool single_stream_leave(struct pool *p);
/* Back to it, for the stream; false: work submitted before `mark` (an open epoch of the past) may still
 * run, other work came, which is noted in *breach, or memory is pending whose fence could not be ordered before
 * others' work later. The caller vouches that all later work is this stream's, or noted there before pool_single_stream
 * is looked at. */
bool single_stream_enter(struct pool *p, uint64_t mark, uint64_t stream, const atomic_bool *breach);
/* Submissions need not come here any more for the sake of stream order. */
void single_stream_unwatch(struct pool *p);

#endif
