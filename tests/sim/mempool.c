/* SPDX-License-Identifier: BSD-2-Clause */
/* cuMemAllocAsync and memory pools. */
#include "tests/sim/mempool.h"

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/device.h"
#include "tests/sim/handles.h"
#include "tests/sim/memory.h"
#include "tests/sim/physical.h"
#include "tests/sim/thread.h"

#include <stdio.h>
#include <unistd.h>

#define MAGIC 0x504f4f4cu

struct CUmemPoolHandle_st {
    uint32_t magic;
    int device;
    bool standard;
    bool imported; /* of another process: it has no memory here */
    uint64_t threshold_bytes;
    uint64_t used_bytes, idle_bytes; /* the idle ones are taken from the device */
    uint64_t used_high_bytes, reserved_high_bytes;
    int reuse[3]; /* the attributes that say when memory may be used again */
};

static struct handles pools = {.size = sizeof(struct CUmemPoolHandle_st)};

static bool valid(CUmemoryPool pool)
{
    return (uintptr_t)pool >= 4096 && pool->magic == MAGIC;
}

/* No program uses a pool that it has destroyed: a real driver reads memory that it has freed. */
static bool alive(CUmemoryPool pool)
{
    if ((uintptr_t)pool >= 4096 && pool->magic == 0)
        fprintf(stderr, "sim: a pool is used that was destroyed\n");
    return valid(pool);
}

static CUmemoryPool pool_create(int device, bool standard)
{
    CUmemoryPool pool = handles_take(&pools);
    *pool = (struct CUmemPoolHandle_st){
        .magic = MAGIC, .device = device, .standard = standard, .reuse = {1, 1, 1}};
    return pool;
}

static void note_highs(CUmemoryPool pool)
{
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    if (pool->used_bytes + pool->idle_bytes > pool->reserved_high_bytes)
        pool->reserved_high_bytes = pool->used_bytes + pool->idle_bytes;
}

/* Keeps idle bytes only as far as the pool then has so many. */
static void shrink(CUmemoryPool pool, uint64_t reserved_bytes)
{
    uint64_t keep = reserved_bytes > pool->used_bytes ? reserved_bytes - pool->used_bytes : 0;
    if (pool->idle_bytes <= keep)
        return;
    device_give(pool->device, pool->idle_bytes - keep);
    pool->idle_bytes = keep;
}

void mempool_gets_back(CUmemoryPool pool, uint64_t bytes)
{
    pool->used_bytes -= bytes;
    if (pool->magic == MAGIC && device_take(pool->device, bytes))
        pool->idle_bytes += bytes;
    shrink(pool, pool->threshold_bytes);
}

/* The pool's idle bytes serve an allocation of its own first. */
static CUresult take(CUcontext context, uint64_t bytes, CUmemoryPool pool, CUdeviceptr *out)
{
    uint64_t reused = bytes < pool->idle_bytes ? bytes : pool->idle_bytes;
    device_give(pool->device, reused);
    pool->idle_bytes -= reused;
    CUresult rc = memory_alloc(context, bytes, out);
    if (rc != CUDA_SUCCESS && device_take(pool->device, reused))
        pool->idle_bytes += reused;
    return rc;
}

static CUmemoryPool standard_pool(int ordinal)
{
    struct device *device = device_at(ordinal);
    if (device->standard_pool == NULL)
        device->standard_pool = pool_create(ordinal, true);
    return device->standard_pool;
}

static CUmemoryPool current_pool(int ordinal)
{
    CUmemoryPool current = device_at(ordinal)->current_pool;
    return current != NULL ? current : standard_pool(ordinal);
}

static CUresult alloc(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    REFUSE(out == NULL, INVALID_VALUE);
    if (stream->capture != NULL) /* memory nodes are not simulated */
        return CUDA_ERROR_NOT_SUPPORTED;
    if (size == 0) {
        *out = 0;
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool == NULL)
        pool = current_pool(stream->context->device);
    REFUSE(!valid(pool) || pool->imported, INVALID_VALUE);
    clock_run(); /* frees that have been reached by now count */
    CUresult rc = take(context_owner(stream->context), size, pool, out);
    while (rc == CUDA_ERROR_OUT_OF_MEMORY && clock_step()) /* frees are still on their way */
        rc = take(context_owner(stream->context), size, pool, out);
    if (rc == CUDA_SUCCESS) {
        struct memory *memory = memory_find(*out);
        memory->pooled = true;
        memory->pool = pool;
        memory->device = pool->device;
        pool->used_bytes += size;
        note_highs(pool);
    }
    return rc;
}

static CUresult release(CUdeviceptr addr, CUstream stream)
{
    if (addr == 0)
        return CUDA_SUCCESS;
    struct memory *memory = memory_find(addr);
    if (memory == NULL || memory->range.lo != addr || memory->freeing ||
        (memory->kind != MEMORY_PAGES && memory->kind != MEMORY_SMALL))
        return CUDA_ERROR_INVALID_VALUE;
    REFUSE(stream->capture != NULL, INVALID_VALUE);
    memory->freeing = true;
    struct command command = {.kind = COMMAND_POOL_FREE, .pool_free.addr = addr};
    CUresult rc = stream_submit(stream, &command);
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

void mempool_device_ends(int ordinal)
{
    for (size_t i = 0; i < pools.count; i++) {
        CUmemoryPool pool = pools.all[i];
        if (pool->magic != MAGIC || pool->device != ordinal)
            continue;
        shrink(pool, 0);
        if (!pool->standard)
            pool->magic = 0;
    }
    device_at(ordinal)->current_pool = NULL;
}

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *props)
{
    REFUSE(out == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED,
           INVALID_VALUE);
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    REFUSE(!device_valid(props->location.id), INVALID_DEVICE);
    *out = pool_create(props->location.id, false);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool pool)
{
    REFUSE(!valid(pool) || pool->standard, INVALID_VALUE);
    if (device_at(pool->device)->current_pool == pool)
        device_at(pool->device)->current_pool = NULL;
    shrink(pool, 0);
    pool->magic = 0; /* the struct stays for allocations that are still alive */
    return CUDA_SUCCESS;
}

/* The descriptor names the device alone: an imported pool has no memory here. */
static CUresult export_pool(int *out, CUmemoryPool pool)
{
    char name[16];
    snprintf(name, sizeof name, "pool %d", pool->device);
    int fd = physical_memory_file(name);
    REFUSE(fd < 0 || write(fd, &pool->device, sizeof pool->device) != sizeof pool->device,
           OPERATING_SYSTEM);
    *out = fd;
    return CUDA_SUCCESS;
}

static CUresult import_pool(CUmemoryPool *out, int fd)
{
    int device;
    REFUSE(pread(fd, &device, sizeof device, 0) != sizeof device || !device_valid(device),
           INVALID_VALUE);
    *out = pool_create(device, false);
    (*out)->imported = true;
    return CUDA_SUCCESS;
}

/* Only who has made the pool may trim it. */
static CUresult trim(CUmemoryPool pool, size_t keep)
{
    if (pool->imported) {
        fprintf(stderr, "sim: an imported pool is trimmed\n");
        return CUDA_ERROR_INVALID_VALUE;
    }
    clock_run(); /* frees that have been reached by now count */
    shrink(pool, keep);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    cuuint64_t *bytes = value;
    switch ((int)which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[which - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *bytes = pool->threshold_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *bytes = pool->used_bytes + pool->idle_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *bytes = pool->reserved_high_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *bytes = pool->used_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *bytes = pool->used_high_bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute which, const void *value)
{
    cuuint64_t bytes = *(const cuuint64_t *)value;
    switch ((int)which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[which - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold_bytes = bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        REFUSE(bytes != 0, INVALID_VALUE);
        *(which == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? &pool->used_high_bytes
                                                 : &pool->reserved_high_bytes) = 0;
        note_highs(pool);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult graph_attribute(cuuint64_t *out, CUdevice device, CUgraphMem_attribute which)
{
    bool reserved = which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ||
                    which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    *out = reserved ? device_at(device)->graph_bytes : 0;
    return CUDA_SUCCESS;
}

static CUresult graph_trim(CUdevice device)
{
    device_give(device, device_at(device)->graph_bytes);
    device_at(device)->graph_bytes = 0;
    return CUDA_SUCCESS;
}

bool mempool_allows(CUmemoryPool pool, int device)
{
    return pool->device == device;
}

API_STREAM(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t size, CUstream stream),
           STREAM(stream), alloc(out, size, NULL, on))
API_STREAM(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
           (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream), STREAM(stream),
           NEEDS(pool != NULL, INVALID_VALUE) alloc(out, size, pool, on))
API_STREAM(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr addr, CUstream stream), STREAM(stream),
           release(addr, on))
API(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props), create(out, props))
API(cuMemPoolDestroy, (CUmemoryPool pool), destroy(pool))
API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep),
    NEEDS(alive(pool), INVALID_VALUE) trim(pool, keep))
API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
    NEEDS(valid(pool) && value != NULL, INVALID_VALUE) set_attribute(pool, which, value))
API(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
    NEEDS(alive(pool) && value != NULL, INVALID_VALUE) get_attribute(pool, which, value))
API(cuMemPoolExportToShareableHandle,
    (void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
    NEEDS(out != NULL && valid(pool) && !pool->standard && flags == 0, INVALID_VALUE)
        NEEDS(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, INVALID_VALUE)
            export_pool(out, pool))
API(cuMemPoolImportFromShareableHandle,
    (CUmemoryPool * out, void *handle, CUmemAllocationHandleType type, unsigned long long flags),
    NEEDS(out != NULL && flags == 0, INVALID_VALUE)
        NEEDS(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, INVALID_VALUE)
            import_pool(out, (int)(intptr_t)handle))
API(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device),
    NEEDS(out != NULL, INVALID_VALUE) NEEDS_DEVICE(device) GIVE(out, current_pool(device)))
API(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool),
    NEEDS_DEVICE(device) NEEDS(valid(pool) && pool->device == device, INVALID_VALUE)
        GIVE(&device_at(device)->current_pool, pool))
API(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute which, void *value),
    NEEDS(value != NULL, INVALID_VALUE) NEEDS_DEVICE(device) graph_attribute(value, device, which))
API(cuDeviceGraphMemTrim, (CUdevice device), NEEDS_DEVICE(device) graph_trim(device))
API(cuMemPoolGetAccess, (CUmemAccess_flags * out, CUmemoryPool pool, CUmemLocation *location),
    NEEDS(out != NULL && location != NULL && valid(pool), INVALID_VALUE)
        NEEDS(location->type == CU_MEM_LOCATION_TYPE_DEVICE, INVALID_VALUE)
            NEEDS(device_valid(location->id), INVALID_VALUE)
                GIVE(out, mempool_allows(pool, location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE))
API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device),
    NEEDS(out != NULL, INVALID_VALUE) NEEDS_DEVICE(device) GIVE(out, standard_pool(device)))
