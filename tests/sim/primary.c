/* SPDX-License-Identifier: BSD-2-Clause */
/* Primary contexts: one for each device, counted, with the same handle in each life. Driver
 * lock. */
#include "tests/sim/primary.h"

#include "tests/sim/api.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"

static CUcontext *primary_of(CUdevice ordinal)
{
    return &device_at(ordinal)->primary;
}

CUresult primary_retain(CUcontext *out, CUdevice ordinal)
{
    REFUSE(out == NULL, INVALID_VALUE);
    REFUSE(!device_valid(ordinal), INVALID_DEVICE);
    struct device *device = device_at(ordinal);
    if (device->primary == NULL) {
        device->primary = context_blank(ordinal);
        device->primary->primary = true;
    }
    if (!device->primary->alive) {
        TRY(context_revive(device->primary));
        device->primary_retained = 0;
    }
    device->primary_retained++;
    *out = device->primary;
    return CUDA_SUCCESS;
}

CUresult primary_release(CUdevice ordinal)
{
    REFUSE(!device_valid(ordinal), INVALID_DEVICE);
    CUcontext primary = *primary_of(ordinal);
    REFUSE(primary == NULL || !primary->alive, INVALID_CONTEXT);
    if (--device_at(ordinal)->primary_retained == 0)
        context_destroy(primary);
    return CUDA_SUCCESS;
}

static CUresult reset(CUdevice ordinal)
{
    CUcontext primary = *primary_of(ordinal);
    if (primary != NULL && primary->alive) {
        context_destroy(primary);
        device_at(ordinal)->primary_retained = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice ordinal, unsigned *flags, int *active)
{
    CUcontext primary = *primary_of(ordinal);
    if (flags != NULL)
        *flags = 0;
    if (active != NULL)
        *active = primary != NULL && primary->alive;
    return CUDA_SUCCESS;
}

/* The runtimes retain the primary context by a private route that hooks do not see (measured).
 * Counts and costs are those of the exported function. */
__attribute__((visibility("default"))) CUresult simPrimaryRetain(CUcontext *out, CUdevice device);
CUresult simPrimaryRetain(CUcontext *out, CUdevice device)
{
    CUresult entered = api_enter(FN_cuDevicePrimaryCtxRetain);
    return entered == CUDA_SUCCESS ? api_leave(primary_retain(out, device)) : entered;
}

API(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), primary_retain(out, device))
API(cuDevicePrimaryCtxRelease, (CUdevice device), primary_release(device))
API(cuDevicePrimaryCtxRelease_v2, (CUdevice device), primary_release(device))
API(cuDevicePrimaryCtxReset, (CUdevice device), NEEDS_DEVICE(device) reset(device))
API(cuDevicePrimaryCtxReset_v2, (CUdevice device), NEEDS_DEVICE(device) reset(device))
API(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active),
    NEEDS_DEVICE(device) get_state(device, flags, active))
