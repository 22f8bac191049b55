/* SPDX-License-Identifier: BSD-2-Clause */
/* cuMemAlloc and similar functions: device and managed memory, freeing, sizes. */
#include <sys/mman.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/hazard.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define PITCH_BYTES 512

static CUresult alloc(CUdeviceptr *out, uint64_t size)
{
    REFUSE(out == NULL || size == 0, INVALID_VALUE);
    /* Measured: a capture permits a small allocation; an allocation of new pages invalidates it. */
    TRY(size >= MIB ? capture_unsafe() : CUDA_SUCCESS);
    api_charge_size(FN_cuMemAlloc_v2, size);
    return memory_alloc(context_owner(thread_current()), size, out);
}

static CUresult alloc_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height)
{
    uint64_t row = round_up(width, PITCH_BYTES);
    REFUSE(row < width || height > UINT64_MAX / row, OUT_OF_MEMORY);
    CUresult rc = alloc(out, row * height);
    if (rc == CUDA_SUCCESS)
        *pitch = row;
    return rc;
}

static CUresult alloc_managed(CUdeviceptr *out, size_t size)
{
    TRY(capture_unsafe());
    uint64_t extent = round_up(size, 4096);
    void *host = mmap(NULL, extent, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REFUSE(host == MAP_FAILED, OUT_OF_MEMORY);
    struct memory *memory = memory_add(MEMORY_MANAGED, (uint64_t)(uintptr_t)host, extent,
                                       context_owner(thread_current()));
    memory->host = host;
    memory->size = size;
    *out = memory->range.lo;
    return CUDA_SUCCESS;
}

static CUresult free_device(CUdeviceptr addr)
{
    if (addr == 0)
        return CUDA_SUCCESS;
    /* Measured: in a lost context the free of any pointer gives its error. */
    if (thread_current() != NULL && thread_current()->error != CUDA_SUCCESS)
        return thread_current()->error;
    struct memory *memory = memory_find(addr);
    if (memory == NULL || memory->range.lo != addr || memory->freeing ||
        (memory->kind != MEMORY_PAGES && memory->kind != MEMORY_SMALL &&
         memory->kind != MEMORY_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    /* The error of the memory's context as well. */
    TRY(memory->context != NULL ? memory->context->error : CUDA_SUCCESS);
    if (memory->kind != MEMORY_SMALL)
        TRY(capture_unsafe());
    api_charge_size(FN_cuMemFree_v2, memory->size);
    /* Measured: cuMemFree waits for all work of the device, also on non-blocking streams. The wait
     * may give the lock up, so the memory is looked up again. */
    memory->freeing = true;
    CUresult rc = context_wait_device(memory->device);
    memory = memory_find(addr);
    REFUSE(memory == NULL || !memory->freeing, INVALID_VALUE);
    if (rc == CUDA_ERROR_LAUNCH_TIMEOUT) {
        memory->freeing = false;
        return rc;
    }
    hazard_release(memory->range.lo, memory->range.hi, "cuMemFree");
    memory_give_back(memory);
    return CUDA_SUCCESS;
}

static CUresult get_info(size_t *available, size_t *total)
{
    int device = thread_current()->device;
    if (available != NULL)
        *available = device_available(device);
    if (total != NULL)
        *total = config.capacity_bytes;
    return CUDA_SUCCESS;
}

static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr addr)
{
    struct memory *memory = memory_asked(addr);
    if (base == NULL && size == NULL)
        return CUDA_SUCCESS;
    REFUSE(memory == NULL, NOT_FOUND);
    if (base != NULL)
        *base = memory->range.lo;
    if (size != NULL)
        *size = memory->size;
    return CUDA_SUCCESS;
}

API(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), alloc(out, size))
API(cuMemAllocPitch_v2,
    (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element),
    NEEDS(out != NULL && pitch != NULL && width > 0 && height > 0, INVALID_VALUE)
        NEEDS(element == 4 || element == 8 || element == 16, INVALID_VALUE)
            alloc_pitch(out, pitch, width, height))
API(cuMemAllocManaged, (CUdeviceptr * out, size_t size, unsigned flags),
    NEEDS(out != NULL && size > 0, INVALID_VALUE)
        NEEDS(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST, INVALID_VALUE)
            alloc_managed(out, size))
API(cuMemFree_v2, (CUdeviceptr addr), free_device(addr))
API(cuMemGetInfo_v2, (size_t *available, size_t *total), get_info(available, total))
API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr addr),
    get_range(base, size, addr))
