/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See pushed.h.
 */
#include "shim/driver/pushed.h"

SHIM_COLD bool pushed_in_spite_of_error(struct pushed *p, CUcontext ctx)
{
    CUcontext now = NULL;
    p->is = real.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == ctx;
    return p->is;
}

static bool is_as_before(const struct pushed *p)
{
    CUcontext now = NULL;
    return real.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == p->before;
}

/* Called only where the program's context is another one than ours. */
SHIM_COLD void pushed_take_off(const struct pushed *p)
{
    if (is_as_before(p))
        return;
    real.cuCtxSetCurrent(NULL);
    if (!is_as_before(p))
        real.cuCtxSetCurrent(p->before);
}
