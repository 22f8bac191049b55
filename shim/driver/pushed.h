/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A context that is the calling thread's current one for a few calls of ours. Afterwards the
 * program's own is current again, whatever the driver answers.
 * 1. The driver may answer a push or a pop with the error of earlier work (documented), whether it
 *    did it or not. So after an error the current context tells, not the code.
 * 2. Where a pop was not done, NULL in place of our context takes it off the stack too
 *    (documentation of cuCtxSetCurrent).
 * 3. A push of a context that has ended succeeds, and the driver reads what it has freed in calls
 *    that follow (signal 11 in cuEventCreate, 580.159). cuCtxGetApiVersion knows such a handle. So
 *    the question comes after the push: what was current when it ended gives errors only
 *    (documentation of cuCtxDestroy), but for calls with its events (Note [Visits] in
 *    device_fence.h). The error of earlier work is no answer.
 * No state, no lock.
 */
#ifndef SHIM_PUSHED_H
#define SHIM_PUSHED_H

#include "shim/driver/error.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>

struct pushed {
    bool is;          /* there is something to pop */
    CUcontext before; /* the program's; NULL: none, or not known */
};

bool pushed_in_spite_of_error(struct pushed *p, CUcontext ctx);
void pushed_take_off(const struct pushed *p);

/* May be called without a pushed_begin, for one that is all zero. */
static inline void pushed_end(const struct pushed *p)
{
    CUcontext ignored;
    if (p->is && __builtin_expect(real.cuCtxPopCurrent_v2(&ignored) != CUDA_SUCCESS, 0))
        pushed_take_off(p);
}

/* Makes ctx current. False: it was destroyed, and the program's own is still current. */
static inline bool pushed_begin(struct pushed *p, CUcontext ctx)
{
    unsigned version;
    *p = (struct pushed){false, NULL};
    if (real.cuCtxGetCurrent(&p->before) == CUDA_SUCCESS && p->before == ctx)
        return true;
    p->is = real.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS;
    if (__builtin_expect(!p->is, 0) && !pushed_in_spite_of_error(p, ctx))
        return false;
    if (!real.cuCtxGetApiVersion || !error_is_end(real.cuCtxGetApiVersion(ctx, &version)))
        return true;
    pushed_end(p);
    p->is = false;
    return false;
}

#endif
