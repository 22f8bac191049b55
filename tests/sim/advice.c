/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls that only advise or ask, and have no effect on simulated memory: occupancy, profiler,
 * prefetch, memory advice, stream attributes. They check their arguments. */
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/device.h"
#include "tests/sim/memory.h"
#include "tests/sim/module.h"
#include "tests/sim/thread.h"

static CUresult occupancy(int *out, CUfunction function, int block)
{
    if (out == NULL || block <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (module_function(function, thread_current()) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = block <= 1024 ? 2048 / (int)round_up((uint64_t)block, 32) : 0;
    return CUDA_SUCCESS;
}

static CUresult managed(CUdeviceptr addr, size_t size)
{
    struct memory *memory = memory_find(addr);
    bool whole = memory != NULL && memory->kind == MEMORY_MANAGED && size > 0 &&
                 size <= memory->range.hi - addr;
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult prefetch(CUdeviceptr addr, size_t size, CUstream handle)
{
    CUstream stream;
    CUresult rc = managed(addr, size);
    if (rc == CUDA_SUCCESS)
        rc = stream_resolve(handle, &stream);
    struct command marker = {.kind = COMMAND_MARKER};
    return rc == CUDA_SUCCESS ? stream_submit(stream, &marker, NULL) : rc;
}

/* Of managed memory: what it is where nobody advised anything. */
static CUresult range_attribute(void *out, size_t out_bytes, CUmem_range_attribute which,
                                CUdeviceptr addr, size_t size)
{
    CUresult rc = managed(addr, size);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (out == NULL || out_bytes == 0 || out_bytes % 4 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int value = which == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
    for (size_t i = 0; i < out_bytes / 4; i++)
        ((int *)out)[i] = value;
    return CUDA_SUCCESS;
}

static CUresult range_attributes(void **out, size_t *out_bytes, CUmem_range_attribute *which,
                                 size_t count, CUdeviceptr addr, size_t size)
{
    CUresult rc = managed(addr, size);
    if (rc == CUDA_SUCCESS && (out == NULL || out_bytes == NULL || which == NULL || count == 0))
        rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && rc == CUDA_SUCCESS; i++)
        rc = range_attribute(out[i], out_bytes[i], which[i], addr, size);
    return rc;
}

static CUresult attach(CUstream handle, CUdeviceptr addr)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    return rc == CUDA_SUCCESS ? managed(addr, 1) : rc;
}

/* Seen on an H200: these are all that a stream has, and 4 domains. They do not change what
 * simulated work does. */
#define DOMAINS 4

static CUresult get_attribute(CUstream handle, CUstreamAttrID which, CUstreamAttrValue *out)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamAttrValue value = {0};
    switch ((int)which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        value.syncPolicy = stream->sync_policy;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        value.priority = stream->priority;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        value.memSyncDomainMap = stream->domain_map;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        value.memSyncDomain = stream->domain;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = value;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUstream handle, CUstreamAttrID which, const CUstreamAttrValue *value)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        if (value->syncPolicy < CU_SYNC_POLICY_AUTO ||
            value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)
            return CUDA_ERROR_INVALID_VALUE;
        stream->sync_policy = value->syncPolicy;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        stream->priority = value->priority;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        if (value->memSyncDomainMap.default_ >= DOMAINS ||
            value->memSyncDomainMap.remote >= DOMAINS)
            return CUDA_ERROR_INVALID_VALUE;
        stream->domain_map = value->memSyncDomainMap;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        if ((unsigned)value->memSyncDomain > CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
            return CUDA_ERROR_INVALID_VALUE;
        stream->domain = value->memSyncDomain;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult copy_attributes(CUstream to_handle, CUstream from_handle)
{
    CUstream to, from;
    CUresult rc = stream_resolve(to_handle, &to);
    if (rc == CUDA_SUCCESS)
        rc = stream_resolve(from_handle, &from);
    if (rc == CUDA_SUCCESS) {
        to->priority = from->priority;
        to->sync_policy = from->sync_policy;
        to->domain = from->domain;
        to->domain_map = from->domain_map;
    }
    return rc;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor,
    (int *out, CUfunction function, int block, size_t shared_bytes),
    occupancy(out, function, block))
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *out, CUfunction function, int block, size_t shared_bytes, unsigned flags),
    occupancy(out, function, block))
API(cuProfilerStart, (void), CUDA_SUCCESS)
API(cuProfilerStop, (void), CUDA_SUCCESS)
API(cuMemAdvise, (CUdeviceptr addr, size_t size, CUmem_advise advice, CUdevice device),
    managed(addr, size))
API(cuMemAdvise_v2, (CUdeviceptr addr, size_t size, CUmem_advise advice, CUmemLocation location),
    managed(addr, size))
API(cuMemRangeGetAttribute,
    (void *out, size_t out_bytes, CUmem_range_attribute which, CUdeviceptr addr, size_t size),
    range_attribute(out, out_bytes, which, addr, size))
API(cuMemRangeGetAttributes,
    (void **out, size_t *out_bytes, CUmem_range_attribute *which, size_t count, CUdeviceptr addr,
     size_t size),
    range_attributes(out, out_bytes, which, count, addr, size))
API_BOTH(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz,
         (CUdeviceptr addr, size_t size, CUdevice device, CUstream stream),
         prefetch(addr, size, STREAM(stream)))
API_BOTH(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
         (CUdeviceptr addr, size_t size, CUmemLocation location, unsigned flags, CUstream stream),
         prefetch(addr, size, STREAM(stream)))
API_BOTH(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz,
         (CUstream stream, CUdeviceptr addr, size_t size, unsigned flags),
         attach(STREAM(stream), addr))
API_BOTH(cuStreamGetAttribute, cuStreamGetAttribute_ptsz,
         (CUstream stream, CUstreamAttrID which, CUstreamAttrValue *out),
         get_attribute(STREAM(stream), which, out))
API_BOTH(cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
         (CUstream stream, CUstreamAttrID which, const CUstreamAttrValue *value),
         set_attribute(STREAM(stream), which, value))
API_BOTH(cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, (CUstream to, CUstream from),
         copy_attributes(STREAM(to), STREAM(from)))
API(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache preference),
    module_function(function, thread_current()) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
API(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig preference),
    module_function(function, thread_current()) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
API(cuFlushGPUDirectRDMAWrites,
    (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope), CUDA_SUCCESS)
