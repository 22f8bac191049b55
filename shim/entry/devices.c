/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See devices.h. No state, no lock.
 */
#include "shim/entry/devices.h"

#include "shim/driver/pushed.h"

uint64_t devices_current(void)
{
    CUdevice device;
    return real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device_bit(device) : DEVICES_ALL;
}

uint64_t devices_context(CUcontext ctx)
{
    struct pushed pushed;
    if (!ctx)
        return devices_current();
    if (!pushed_begin(&pushed, ctx))
        return DEVICES_ALL;
    uint64_t devices = devices_current();
    pushed_end(&pushed);
    return devices;
}

uint64_t devices_peers(CUcontext peer)
{
    return devices_current() | devices_context(peer);
}

uint64_t devices_stream(CUstream stream)
{
    CUcontext ctx = NULL;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return devices_current();
    if (!real.cuStreamGetCtx || real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS || !ctx)
        return DEVICES_ALL;
    return devices_context(ctx);
}

uint64_t devices_green(CUgreenCtx green)
{
    CUcontext ctx = NULL;
    return real.cuCtxFromGreenCtx(&ctx, green) == CUDA_SUCCESS && ctx ? devices_context(ctx)
                                                                      : DEVICES_ALL;
}

/* The host's memory is on no device. */
uint64_t devices_location(const CUmemLocation *location)
{
    bool is_device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return is_device ? device_bit(location->id) : DEVICES_NONE;
}

uint64_t devices_physical(const CUmemAllocationProp *prop)
{
    return devices_location(prop ? &prop->location : NULL);
}

uint64_t devices_handle(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;
    if (!real.cuMemGetAllocationPropertiesFromHandle ||
        real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS)
        return DEVICES_ALL;
    return devices_physical(&prop);
}

uint64_t devices_access(const CUmemAccessDesc *desc, size_t count)
{
    uint64_t devices = DEVICES_NONE;
    for (size_t i = 0; desc && i < count; i++)
        devices |= devices_location(&desc[i].location);
    return devices;
}

uint64_t devices_pool(CUmemoryPool pool)
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
            devices |= device_bit(device);
    }
    return devices;
}
