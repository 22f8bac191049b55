/* SPDX-License-Identifier: BSD-2-Clause */
/* VMM memory between processes, as file descriptors. The bytes are shared; they count against the
 * device in the process that created them. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/sim/api.h"
#include "tests/sim/device.h"
#include "tests/sim/physical.h"

static CUresult export_handle(void *out, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    if (out == NULL || flags != 0 || !physical_valid(physical))
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = physical_export(physical);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *out, void *os_handle,
                              CUmemAllocationHandleType type)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = (int)(uintptr_t)os_handle, device;
    uint64_t size;
    if (!physical_identify(fd, &device, &size) || !device_valid(device))
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct physical *physical = fd >= 0 ? physical_import(fd, 0, size, device) : NULL;
    if (physical == NULL) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    physical->handles = 1;
    physical->properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

API(cuMemExportToShareableHandle,
    (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
     unsigned long long flags),
    export_handle(out, handle, type, flags))
API(cuMemImportFromShareableHandle,
    (CUmemGenericAllocationHandle * out, void *os_handle, CUmemAllocationHandleType type),
    import_handle(out, os_handle, type))
/* dma-buf: no such device here. */
API(cuMemGetHandleForAddressRange,
    (void *out, CUdeviceptr addr, size_t size, CUmemRangeHandleType type, unsigned long long flags),
    CUDA_ERROR_NOT_SUPPORTED)
