/* SPDX-License-Identifier: BSD-2-Clause */
/* The first, 32-bit variants of memory and context functions. No device address fits into them
 * here; they exist because a caller may look them up, and must never be confused with the variants
 * of today. */
#include "tests/sim/api.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/thread.h"

static unsigned clamp(uint64_t bytes)
{
    return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

static CUresult get_info(unsigned *available, unsigned *total)
{
    if (available != NULL)
        *available = clamp(device_available(thread_current()->device));
    if (total != NULL)
        *total = clamp(device_total(thread_current()->device));
    return CUDA_SUCCESS;
}

static CUresult total_memory(unsigned *out, CUdevice device)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = clamp(device_total(device));
    return CUDA_SUCCESS;
}

API(cuMemAlloc, (CUdeviceptr_v1 * out, unsigned size),
    out == NULL || size == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY)
API(cuMemAllocPitch,
    (CUdeviceptr_v1 * out, unsigned *pitch, unsigned width, unsigned height, unsigned element),
    out == NULL || pitch == NULL || width == 0 ? CUDA_ERROR_INVALID_VALUE
                                               : CUDA_ERROR_OUT_OF_MEMORY)
API(cuMemFree, (CUdeviceptr_v1 addr), addr == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
API(cuMemGetInfo, (unsigned *available, unsigned *total), get_info(available, total))
API(cuMemGetAddressRange, (CUdeviceptr_v1 * base, unsigned *size, CUdeviceptr_v1 addr),
    CUDA_ERROR_NOT_FOUND)
API(cuDeviceTotalMem, (unsigned *out, CUdevice device), total_memory(out, device))
