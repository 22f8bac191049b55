/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h: what the driver says of a context. No lock.
 */
#include "shim/context/context.h"
#include "shim/driver/device.h"
#include "shim/driver/error.h"

/* A thread may have a context current that was reset or destroyed. The driver refuses to serve
 * such a context. */
bool context_is_alive(CUcontext ctx)
{
    unsigned version;
    return !real.cuCtxGetApiVersion || !error_is_end(real.cuCtxGetApiVersion(ctx, &version));
}

unsigned long long context_life(CUcontext ctx)
{
    unsigned long long id = 0;
    return real.cuCtxGetId && real.cuCtxGetId(ctx, &id) == CUDA_SUCCESS ? id : 0;
}

bool context_is_over(CUcontext ctx, unsigned long long life, enum context_primary primary,
                     CUdevice device)
{
    if ((primary == CONTEXT_PRIMARY && !device_primary_is_active(device)) || !context_is_alive(ctx))
        return true;
    unsigned long long now = 0;
    CUresult rc = life ? real.cuCtxGetId(ctx, &now) : CUDA_SUCCESS;
    return rc == CUDA_SUCCESS ? now != life : error_is_end(rc);
}

enum context_primary context_kind(CUcontext ctx, CUdevice device)
{
    CUcontext primary = device_primary(device);
    if (primary == ctx)
        return CONTEXT_PRIMARY;
    return !primary && device_primary_is_active(device) ? CONTEXT_MAYBE_PRIMARY : CONTEXT_CREATED;
}
