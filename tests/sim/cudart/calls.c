/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions that pass their arguments on to one function of the driver, most of them with a
 * twin for a per-thread default stream. Handles are the driver's own. No state of its own. */
#include "tests/sim/cudart/cudart.h"

#include <assert.h>
#include <string.h>

#define PASS(name, params, ...)                                                                    \
    cudaError_t name params                                                                        \
    {                                                                                              \
        return IN_CONTEXT(CALL(__VA_ARGS__));                                                      \
    }
/* The twin calls the variant of twin_version. */
#define PASS_TWINS(name, suffix, params, driver, version, twin_version, ...)                       \
    PASS(name, params, driver, version, __VA_ARGS__)                                               \
    cudaError_t name##_##suffix params                                                             \
    {                                                                                              \
        return IN_CONTEXT(CALL_AS(PFN_##driver##_v##twin_version##_##suffix, driver, twin_version, \
                                  2, __VA_ARGS__));                                                \
    }
#define PTR(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

PASS(cudaStreamCreate, (cudaStream_t * stream), cuStreamCreate, 2000, stream, CU_STREAM_DEFAULT)
PASS(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), cuStreamCreate, 2000,
     stream, flags)
PASS(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
     cuStreamIsCapturing, 10000, stream, (CUstreamCaptureStatus *)status)
PASS(cudaStreamDestroy, (cudaStream_t stream), cuStreamDestroy, 4000, stream)
PASS_TWINS(cudaStreamSynchronize, ptsz, (cudaStream_t stream), cuStreamSynchronize, 2000, 7000,
           stream)
PASS_TWINS(cudaStreamQuery, ptsz, (cudaStream_t stream), cuStreamQuery, 2000, 7000, stream)
PASS_TWINS(cudaStreamWaitEvent, ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
           cuStreamWaitEvent, 3020, 7000, stream, event, flags)
PASS(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), cuEventCreate, 2000, event,
     flags)
PASS_TWINS(cudaEventRecord, ptsz, (cudaEvent_t event, cudaStream_t stream), cuEventRecord, 2000,
           7000, event, stream)
PASS(cudaEventQuery, (cudaEvent_t event), cuEventQuery, 2000, event)
PASS(cudaEventSynchronize, (cudaEvent_t event), cuEventSynchronize, 2000, event)
PASS(cudaEventDestroy, (cudaEvent_t event), cuEventDestroy, 4000, event)

PASS_TWINS(cudaStreamBeginCapture, ptsz, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
           cuStreamBeginCapture, 10010, 10010, stream, (CUstreamCaptureMode)mode)
PASS_TWINS(cudaStreamEndCapture, ptsz, (cudaStream_t stream, cudaGraph_t *graph),
           cuStreamEndCapture, 10000, 10000, stream, graph)
PASS(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
     cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *)mode)
PASS(cudaGraphInstantiateWithFlags,
     (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
     cuGraphInstantiateWithFlags, 11040, exec, graph, flags)
PASS_TWINS(cudaGraphLaunch, ptsz, (cudaGraphExec_t exec, cudaStream_t stream), cuGraphLaunch, 10000,
           10000, exec, stream)
PASS(cudaGraphExecDestroy, (cudaGraphExec_t exec), cuGraphExecDestroy, 10000, exec)
PASS(cudaGraphDestroy, (cudaGraph_t graph), cuGraphDestroy, 10000, graph)

PASS(cudaHostAlloc, (void **pointer, size_t size, unsigned flags), cuMemHostAlloc, 2020, pointer,
     size, flags)
PASS(cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes), cuMemGetInfo, 3020, free_bytes,
     total_bytes)
PASS_TWINS(cudaMallocAsync, ptsz, (void **pointer, size_t size, cudaStream_t stream),
           cuMemAllocAsync, 11020, 11020, (CUdeviceptr *)pointer, size, stream)
PASS_TWINS(cudaFreeAsync, ptsz, (void *pointer, cudaStream_t stream), cuMemFreeAsync, 11020, 11020,
           PTR(pointer), stream)
PASS_TWINS(cudaMemset, ptds, (void *pointer, int value, size_t size), cuMemsetD8, 3020, 7000,
           PTR(pointer), (unsigned char)value, size)
PASS_TWINS(cudaMemsetAsync, ptsz, (void *pointer, int value, size_t size, cudaStream_t stream),
           cuMemsetD8Async, 3020, 7000, PTR(pointer), (unsigned char)value, size, stream)

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "the handle is passed on");

static CUipcMemHandle driver_handle(cudaIpcMemHandle_t handle)
{
    CUipcMemHandle out;
    memcpy(&out, &handle, sizeof out);
    return out;
}

PASS(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *pointer), cuIpcGetMemHandle, 4010,
     (CUipcMemHandle *)handle, PTR(pointer))
PASS(cudaIpcOpenMemHandle, (void **pointer, cudaIpcMemHandle_t handle, unsigned flags),
     cuIpcOpenMemHandle, 11000, (CUdeviceptr *)pointer, driver_handle(handle), flags)
PASS(cudaIpcCloseMemHandle, (void *pointer), cuIpcCloseMemHandle, 4010, PTR(pointer))
