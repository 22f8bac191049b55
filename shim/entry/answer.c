/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See answer.h. No state but the pools', no lock. Nothing here runs unless a call of the driver
 * failed.
 */
#include "shim/entry/answer.h"

#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/driver/backend.h"
#include "shim/driver/error.h"
#include "shim/driver/pushed.h"
#include "shim/process/state.h"
#include "shim/share/lend.h"
#include "shim/stats/counters.h"

#include <errno.h>

SHIM_COLD bool answer_note(CUresult rc)
{
    if (!state_is_on())
        return false;
    if (error_is_loss(rc)) {
        int saved_errno = errno;
        context_look_for_loss();
        errno = saved_errno;
    }
    return rc == CUDA_ERROR_OUT_OF_MEMORY;
}

SHIM_COLD bool answer_release(uint64_t devices, struct answer_steps *steps)
{
    int saved_errno = errno;
    bool some = false;
    uint64_t own = devices && atomic_load(&flush_at_oom) ? DEVICES_ALL : devices;
    while (own && steps->step < POOL_RELEASE_STEPS && !some)
        some = context_release(own, (enum pool_release)steps->step++);
    some = some || lend_ask(devices, steps->bytes, &steps->series);
    if (some)
        counter_add(COUNTER_RETRY, 1);
    errno = saved_errno;
    return some;
}

uint64_t answer_device(CUdevice device)
{
    return device_bit(device);
}

uint64_t answer_current(void)
{
    CUdevice device;
    return real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? answer_device(device) : DEVICES_ALL;
}

uint64_t answer_context(CUcontext ctx)
{
    struct pushed pushed;
    if (!ctx)
        return answer_current();
    if (!pushed_begin(&pushed, ctx))
        return DEVICES_ALL;
    uint64_t devices = answer_current();
    pushed_end(&pushed);
    return devices;
}

uint64_t answer_peers(CUcontext peer)
{
    return answer_current() | answer_context(peer);
}

uint64_t answer_stream(CUstream stream)
{
    CUcontext ctx = NULL;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return answer_current();
    if (!real.cuStreamGetCtx || real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS || !ctx)
        return DEVICES_ALL;
    return answer_context(ctx);
}

uint64_t answer_green(CUgreenCtx green)
{
    CUcontext ctx = NULL;
    return real.cuCtxFromGreenCtx(&ctx, green) == CUDA_SUCCESS && ctx ? answer_context(ctx)
                                                                      : DEVICES_ALL;
}

/* The host's memory is on no device. */
uint64_t answer_location(const CUmemLocation *location)
{
    if (!location)
        return DEVICES_NONE;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? answer_device(location->id)
                                                         : DEVICES_NONE;
}

uint64_t answer_physical(const CUmemAllocationProp *prop)
{
    return answer_location(prop ? &prop->location : NULL);
}

uint64_t answer_handle(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;
    if (!real.cuMemGetAllocationPropertiesFromHandle ||
        real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS)
        return DEVICES_ALL;
    return answer_physical(&prop);
}

uint64_t answer_access(const CUmemAccessDesc *desc, size_t count)
{
    uint64_t devices = DEVICES_NONE;
    for (size_t i = 0; desc && i < count; i++)
        devices |= answer_location(&desc[i].location);
    return devices;
}

uint64_t answer_pool(CUmemoryPool pool)
{
    uint64_t devices = DEVICES_NONE;
    int count = 0;
    if (!real.cuMemPoolGetAccess || real.cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return DEVICES_ALL;
    for (CUdevice device = 0; device < count; device++) {
        CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
        CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        if (real.cuMemPoolGetAccess(&flags, pool, &location) == CUDA_SUCCESS &&
            flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            devices |= answer_device(device);
    }
    return devices;
}
