/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A visit: a stretch of the library's own driver calls.
 * 1. It is in the relaxed capture mode, in which the driver forbids least, so that our calls break
 *    no capture of the program's. The change of mode takes 7 ns (H200).
 * 2. The thread is not cancelled in it.
 * 3. After it the caller's context, mode and errno are as before.
 * 4. At exit the driver takes itself down while threads of the program may still allocate. One call
 *    of the driver's bears that. Several calls of ours, with state in between, might not. So once
 *    the process leaves no visit begins, and those under way have a moment to end.
 * No lock.
 */
#ifndef SHIM_VISIT_H
#define SHIM_VISIT_H

#include "shim/process/cancel.h"
#include "shim/driver/hooks.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

struct visit {
    bool pushed, mode_known;
    CUstreamCaptureMode mode;
    int saved_errno, cancel;
};

extern atomic_bool visit_no_more __attribute__((visibility("hidden"))); /* the process leaves */
extern atomic_int visit_count __attribute__((visibility("hidden")));    /* under way */

/* In whatever context is current. False: the process leaves, so the driver must not be called, and
 * there is nothing to end. */
static inline bool visit_begin(struct visit *v)
{
    atomic_fetch_add(&visit_count, 1);
    if (atomic_load(&visit_no_more)) {
        atomic_fetch_sub(&visit_count, 1);
        return false;
    }
    *v = (struct visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED, .saved_errno = errno,
                        .cancel = cancel_forbid()};
    v->mode_known = real.cuThreadExchangeStreamCaptureMode &&
                    real.cuThreadExchangeStreamCaptureMode(&v->mode) == CUDA_SUCCESS;
    return true;
}

static inline void visit_end(struct visit *v)
{
    CUcontext ignored;
    if (v->pushed)
        real.cuCtxPopCurrent_v2(&ignored);
    if (v->mode_known)
        real.cuThreadExchangeStreamCaptureMode(&v->mode);
    errno = v->saved_errno;
    atomic_fetch_sub(&visit_count, 1);
    cancel_allow(v->cancel);
}

/* Ends the visit; returns false. A function of its own, so that visit_enter is short. */
bool visit_refused(struct visit *v);

/* The same in ctx, which is pushed if it is not current. False also if ctx was destroyed: the call
 * would be made in the program's own context, and its answer would be taken for ctx's. */
static inline bool visit_enter(struct visit *v, CUcontext ctx)
{
    CUcontext current = NULL;
    if (!visit_begin(v))
        return false;
    if (real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == ctx)
        return true;
    v->pushed = real.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS;
    return v->pushed || visit_refused(v);
}

/* Runs work(arg) in a visit of ctx; NULL: of whatever context is current. False: nothing was run,
 * because the process leaves or ctx is destroyed. */
bool visit_run(CUcontext ctx, void (*work)(void *arg), void *arg);

/* The process leaves: no visit begins any more. At exit, before the driver's own handlers. */
void visit_at_exit(void);

#endif
