/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See stream.h. Why the legacy default stream alone needs no fence, condition by condition:
 *
 * - No other stream was created: cuStreamCreate, cuStreamCreateWithPriority and cuGreenCtxStreamCreate
 *   are the driver's only public makers of streams, every route to them is wrapped, and the wrapper
 *   returns to the program only after the pools have left the single-stream mode.
 * - The per-thread default stream was not used: it needs no creation, so every submission is looked at
 *   (shim/submit.def): a per-thread variant with a NULL stream, or CU_STREAM_PER_THREAD itself, ends the
 *   mode before the driver sees the call.
 * - No launch with attributes: programmatic dependent launch lets a kernel start before its
 *   predecessor in the stream ends. Such a launch ends the mode.
 * - No captures: begin ends the mode. No peers, no second context: other devices' work is in no order
 *   with this stream; enabling peer access or making a second pool ends the mode.
 * - No function that is newer than our tables: it may submit work unseen. When cuGetProcAddress hands out
 *   the first one, as runtimes of 13.1 and newer ask drivers of their kind for, the mode ends (resolve.c).
 * What the driver does on streams of its own (copies from pageable memory) is ordered with the legacy
 * stream as documented. Work of one stream runs in order, so a block freed after its last user was
 * submitted may be handed out at once: its next user is submitted later, to the same stream.
 */
#include "shim/stream.h"

#include "shim/context.h"
#include "shim/state.h"
#include "shim/submit.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool others;

bool stream_is_single(void)
{
    return !atomic_load(&others);
}

/* A pool counts itself in pool_watch, is listed, and then looks at `others` (context.c); this sets
 * `others`, then looks at pool_watch and the list. All in one order for all threads (no weaker order will
 * do, the store must not pass the load): no pool is missed.
 * Every caller goes through the pools, so that none returns before the one who came first is done. */
void stream_leave_single(void)
{
    atomic_store(&others, true);
    if (atomic_load(&pool_watch) & POOL_WATCH_SINGLE)
        context_for_each_pool(pool_leave_single_stream);
}

static uint64_t key_of(CUstream stream, unsigned flags)
{
    bool per_thread = stream == CU_STREAM_PER_THREAD || (!stream && (flags & SUBMIT_FLAG_PTSZ));
    if (stream == CU_STREAM_LEGACY)
        stream = NULL;
    return per_thread ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
}

static bool is_legacy(CUstream stream, unsigned flags)
{
    return stream == CU_STREAM_LEGACY ? flags == 0 || flags == SUBMIT_FLAG_PTSZ : !stream && flags == 0;
}

void submit_note(CUstream stream, unsigned flags)
{
    unsigned watch = atomic_load_explicit(&pool_watch, memory_order_relaxed);
    if (!state_is_on())
        return;
    int saved_errno = errno;
    if ((watch & POOL_WATCH_SINGLE) && !is_legacy(stream, flags))
        stream_leave_single();
    if (watch & POOL_WATCH_UNSEALED)
        context_submit(key_of(stream, flags));
    errno = saved_errno;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult rc = real.cuStreamCreate(stream, flags);
    if (rc == CUDA_SUCCESS)
        stream_leave_single();
    return rc;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CUresult rc = real.cuStreamCreateWithPriority(stream, flags, priority);
    if (rc == CUDA_SUCCESS)
        stream_leave_single();
    return rc;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    CUresult rc = real.cuGreenCtxStreamCreate(stream, green, flags, priority);
    if (rc == CUDA_SUCCESS)
        stream_leave_single();
    return rc;
}
