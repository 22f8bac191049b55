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

static CUresult attach(CUstream handle, CUdeviceptr addr)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    return rc == CUDA_SUCCESS ? managed(addr, 1) : rc;
}

static CUresult get_attribute(CUstream handle, CUstreamAttrID which, CUstreamAttrValue *out)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    if (which == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        out->priority = stream->priority;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUstream handle, CUstreamAttrID which, const CUstreamAttrValue *value)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS && value == NULL)
        rc = CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS && which == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority;
    return rc;
}

static CUresult copy_attributes(CUstream to_handle, CUstream from_handle)
{
    CUstream to, from;
    CUresult rc = stream_resolve(to_handle, &to);
    if (rc == CUDA_SUCCESS)
        rc = stream_resolve(from_handle, &from);
    if (rc == CUDA_SUCCESS)
        to->priority = from->priority;
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
