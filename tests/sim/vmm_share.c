/* SPDX-License-Identifier: BSD-2-Clause */
/* VMM memory between processes, as file descriptors. The processes share the bytes. The memory
 * counts against the device in the process that created it. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/sim/api.h"
#include "tests/sim/device.h"
#include "tests/sim/memory.h"
#include "tests/sim/physical.h"

#define DMA_PAGE UINT64_C(4096)
#define SMALL_PAGE (UINT64_C(2) << 20) /* what small allocations are cut from */

static CUresult export_handle(void *out, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    REFUSE(out == NULL || flags != 0 || !physical_valid(physical), INVALID_VALUE);
    REFUSE(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, NOT_SUPPORTED);
    int fd = physical_export(physical);
    REFUSE(fd < 0, INVALID_VALUE);
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *out, void *os_handle,
                              CUmemAllocationHandleType type)
{
    REFUSE(out == NULL, INVALID_VALUE);
    REFUSE(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, NOT_SUPPORTED);
    int fd = (int)(uintptr_t)os_handle, device;
    uint64_t size;
    REFUSE(!physical_identify(fd, &device, &size) || !device_valid(device), INVALID_VALUE);
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

/* A dma-buf of pages. It is a descriptor only, because no other device could use it. A page with
 * several small allocations counts as one piece. */
static CUresult range_handle(int *out, uint64_t addr, uint64_t size, CUmemRangeHandleType type)
{
    uint64_t end = addr + size;
    if (out == NULL || size == 0 || addr % DMA_PAGE != 0 || size % DMA_PAGE != 0 || end < addr ||
        type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = addr; at < end;) {
        struct memory *memory = memory_from(at);
        REFUSE(memory == NULL, INVALID_VALUE);
        if (memory->kind == MEMORY_SMALL && memory->range.lo / SMALL_PAGE == at / SMALL_PAGE) {
            at = (at / SMALL_PAGE + 1) * SMALL_PAGE;
            continue;
        }
        if (memory->range.lo > at ||
            (memory->kind != MEMORY_PAGES && memory->kind != MEMORY_MAPPED))
            return CUDA_ERROR_INVALID_VALUE;
        at = memory->range.hi;
    }
    int fd = physical_memory_file("simulated-dma-buf");
    REFUSE(fd < 0, OPERATING_SYSTEM);
    *out = fd;
    return CUDA_SUCCESS;
}

API(cuMemExportToShareableHandle,
    (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
     unsigned long long flags),
    export_handle(out, handle, type, flags))
API(cuMemImportFromShareableHandle,
    (CUmemGenericAllocationHandle * out, void *os_handle, CUmemAllocationHandleType type),
    import_handle(out, os_handle, type))
API(cuMemGetHandleForAddressRange,
    (void *out, CUdeviceptr addr, size_t size, CUmemRangeHandleType type, unsigned long long flags),
    range_handle(out, addr, size, type))
