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
#define ATTRIBUTES_MAX 16

struct CUmemPoolHandle_st {
    uint32_t magic;
    int device;
    bool standard;
    uint32_t peers; /* bit per device that has access */
    cuuint64_t attributes[ATTRIBUTES_MAX];
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
    pool->attributes[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = 1;
    pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = 1;
    pool->attributes[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = 1;
    return pool;
}

static CUmemoryPool standard_pool(int ordinal)
{
    struct device *device = device_at(ordinal);
    if (device->standard_pool == NULL)
        device->standard_pool = pool_create(ordinal, true);
    if (device->current_pool == NULL)
        device->current_pool = device->standard_pool;
    return device->standard_pool;
}

static void account(CUmemoryPool pool, int64_t bytes)
{
    static const int pairs[][2] = {
        {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH},
        {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}};
    for (int i = 0; i < 2; i++) {
        cuuint64_t *now = &pool->attributes[pairs[i][0]], *high = &pool->attributes[pairs[i][1]];
        *now += (cuuint64_t)bytes;
        if (*now > *high)
            *high = *now;
    }
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
    if (pool == NULL) {
        standard_pool(stream->context->device);
        pool = device_at(stream->context->device)->current_pool;
    }
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
        account(pool, (int64_t)size);
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
    rc = stream_submit(stream, &command, NULL);
    if (rc != CUDA_SUCCESS)
        memory->freeing = false;
    return rc;
}

void mempool_reclaim(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    if (memory == NULL || !memory->freeing)
        return;
    if (memory->pool != NULL)
        account(memory->pool, -(int64_t)memory->size);
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
    if (device_at(pool->device)->current_pool == pool)
        device_at(pool->device)->current_pool = device_at(pool->device)->standard_pool;
    pool->magic = 0; /* the struct stays for allocations that are still alive */
    return CUDA_SUCCESS;
}

static CUresult get_pool(CUmemoryPool *out, CUdevice ordinal, bool standard)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    CUmemoryPool pool = standard_pool(ordinal);
    *out = standard ? pool : device_at(ordinal)->current_pool;
    return CUDA_SUCCESS;
}

static CUresult set_pool(CUdevice ordinal, CUmemoryPool pool)
{
    if (!device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!valid(pool) || pool->device != ordinal)
        return CUDA_ERROR_INVALID_VALUE;
    standard_pool(ordinal);
    device_at(ordinal)->current_pool = pool;
    return CUDA_SUCCESS;
}

static bool is_flag(int attribute)
{
    return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

static CUresult attribute(CUmemoryPool pool, int attribute, void *value, bool set)
{
    if (!valid(pool) || value == NULL || attribute <= 0 || attribute >= ATTRIBUTES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t *mine = &pool->attributes[attribute];
    if (!set && is_flag(attribute))
        *(int *)value = (int)*mine;
    else if (!set)
        *(cuuint64_t *)value = *mine;
    else if (is_flag(attribute))
        *mine = *(const int *)value != 0;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || *(const cuuint64_t *)value == 0)
        *mine = *(const cuuint64_t *)value;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)
{
    if (!valid(pool) || desc == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !device_valid(desc[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    for (size_t i = 0; i < count; i++) {
        uint32_t bit = (uint32_t)1 << desc[i].location.id;
        bool on = desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
        pool->peers = on ? pool->peers | bit : pool->peers & ~bit;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(CUmemAccess_flags *out, CUmemoryPool pool, const CUmemLocation *location)
{
    if (out == NULL || location == NULL || !valid(pool) ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    bool on = location->id == pool->device || ((pool->peers >> location->id) & 1);
    *out = on ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* The device that a location names, or -1. */
static CUdevice of_location(const CUmemLocation *location, CUmemAllocationType type)
{
    bool plain = location != NULL && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
                 type == CU_MEM_ALLOCATION_TYPE_PINNED;
    return plain ? location->id : -1;
}

bool mempool_allows(CUmemoryPool pool, int device)
{
    return pool->device == device || ((pool->peers >> device) & 1);
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
API(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
    attribute(pool, (int)which, value, false))
API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
    attribute(pool, (int)which, value, true))
API(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count),
    set_access(pool, desc, count))
API(cuMemPoolGetAccess, (CUmemAccess_flags * out, CUmemoryPool pool, CUmemLocation *location),
    get_access(out, pool, location))
API(cuMemGetDefaultMemPool, (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
    get_pool(out, of_location(location, type), true))
API(cuMemGetMemPool, (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
    get_pool(out, of_location(location, type), false))
API(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool),
    set_pool(of_location(location, type), pool))
API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device), get_pool(out, device, true))
API(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device), get_pool(out, device, false))
API(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_pool(device, pool))
