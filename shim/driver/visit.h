/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A visit: a stay of the library's own in the driver. It is in the relaxed capture mode, in which the
 * driver forbids least (7 ns, measured on an H200): a capture of the program's must not be broken by what
 * we do beside it. The thread is not cancelled in it. Once it ends, the caller's context, mode and
 * errno are as they were.
 *
 * The driver takes itself down at exit while threads of the program may still allocate. Its own calls
 * are ready for that; several at a time of ours, with state in between, might not be: once the process
 * leaves, no new visit begins, and those under way have a moment to end. No lock.
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

/* In whatever context is current. False: the process leaves, the driver is not to be called; nothing to
 * end. */
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

/* Ends it. Apart, for the usual way to be short. Returns false. */
bool visit_refused(struct visit *v);

/* The same in ctx, which is pushed if it is not current. False also where it was destroyed: the call
 * would be made in the program's own context instead, and its answer be taken for ctx's. */
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
