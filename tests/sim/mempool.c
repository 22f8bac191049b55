/* SPDX-License-Identifier: BSD-2-Clause */
/* cuMemAllocAsync and memory pools. */
#include "tests/sim/mempool.h"

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/device.h"
#include "tests/sim/handles.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define MAGIC 0x504f4f4cu

struct CUmemPoolHandle_st {
    uint32_t magic;
    int device;
    bool standard;
};

static struct handles pools = {.size = sizeof(struct CUmemPoolHandle_st)};

static bool valid(CUmemoryPool pool)
{
    return (uintptr_t)pool >= 4096 && pool->magic == MAGIC;
}

static CUmemoryPool pool_create(int device, bool standard)
{
    CUmemoryPool pool = handles_take(&pools);
    *pool = (struct CUmemPoolHandle_st){.magic = MAGIC, .device = device, .standard = standard};
    return pool;
}

static CUmemoryPool standard_pool(int ordinal)
{
    struct device *device = device_at(ordinal);
    if (device->standard_pool == NULL)
        device->standard_pool = pool_create(ordinal, true);
    return device->standard_pool;
}

static CUresult alloc(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL) /* memory nodes are not simulated */
        return CUDA_ERROR_NOT_SUPPORTED;
    if (size == 0) {
        *out = 0;
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool == NULL)
        pool = standard_pool(stream->context->device);
    if (!valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    clock_run(); /* frees that have been reached by now count */
    rc = memory_alloc(context_owner(stream->context), size, out);
    while (rc == CUDA_ERROR_OUT_OF_MEMORY && clock_step())
        rc = memory_alloc(context_owner(stream->context), size,
                          out); /* waits for frees that are still on their way */
    if (rc == CUDA_SUCCESS) {
        struct memory *memory = memory_find(*out);
        memory->pooled = true;
        memory->pool = pool;
        memory->device = pool->device;
    }
    return rc;
}

static CUresult release(CUdeviceptr addr, CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (addr == 0)
        return CUDA_SUCCESS;
    struct memory *memory = memory_find(addr);
    if (memory == NULL || memory->range.lo != addr || memory->freeing ||
        (memory->kind != MEMORY_PAGES && memory->kind != MEMORY_SMALL))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory->freeing = true;
    struct command command = {.kind = COMMAND_POOL_FREE, .pool_free.addr = addr};
    rc = stream_submit(stream, &command);
    if (rc != CUDA_SUCCESS)
        memory->freeing = false;
    return rc;
}

void mempool_reclaim(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    if (memory != NULL && memory->freeing)
        memory_give_back(memory);
}

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (out == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_valid(props->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = pool_create(props->location.id, false);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool pool)
{
    if (!valid(pool) || pool->standard)
        return CUDA_ERROR_INVALID_VALUE;
    pool->magic = 0; /* the struct stays for allocations that are still alive */
    return CUDA_SUCCESS;
}

/* The pools keep no memory, so attributes have no effect. */
static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute which, const void *value)
{
    bool high =
        which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || which == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    bool settable = which >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
                    which <= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    if (!valid(pool) || value == NULL || !(high || settable))
        return CUDA_ERROR_INVALID_VALUE;
    return high && *(const cuuint64_t *)value != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool mempool_allows(CUmemoryPool pool, int device)
{
    return pool->device == device;
}

API_BOTH(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t size, CUstream stream),
         alloc(out, size, NULL, STREAM(stream)))
API_BOTH(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
         (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream),
         pool == NULL ? CUDA_ERROR_INVALID_VALUE : alloc(out, size, pool, STREAM(stream)))
API_BOTH(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr addr, CUstream stream),
         release(addr, STREAM(stream)))
API(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props), create(out, props))
API(cuMemPoolDestroy, (CUmemoryPool pool), destroy(pool))
API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep),
    valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
    set_attribute(pool, which, value))
API(cuMemPoolGetAccess, (CUmemAccess_flags * out, CUmemoryPool pool, CUmemLocation *location),
    NEEDS(out != NULL && location != NULL && valid(pool), INVALID_VALUE)
    NEEDS(location->type == CU_MEM_LOCATION_TYPE_DEVICE, INVALID_VALUE)
    NEEDS(device_valid(location->id), INVALID_VALUE)
    GIVE(out, mempool_allows(pool, location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE))
API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device),
    NEEDS(out != NULL, INVALID_VALUE) NEEDS_DEVICE(device) GIVE(out, standard_pool(device)))
