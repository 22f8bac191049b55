/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The runtime's stream capture and graphs, as far as capture, instantiation and launch. No state
 * of its own.
 */
#include "tests/sim/cudart/cudart.h"

static cudaError_t cudaStreamBeginCapture_flavour(bool per_thread, cudaStream_t stream,
                                                  enum cudaStreamCaptureMode mode)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuStreamBeginCapture, 10010, 10010, stream,
                                (CUstreamCaptureMode)mode));
}
TWINS(cudaStreamBeginCapture, ptsz, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
      (stream, mode))

static cudaError_t cudaStreamEndCapture_flavour(bool per_thread, cudaStream_t stream,
                                                cudaGraph_t *graph)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuStreamEndCapture, 10000, 10000, stream, graph));
}
TWINS(cudaStreamEndCapture, ptsz, (cudaStream_t stream, cudaGraph_t *graph), (stream, graph))

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return IN_CONTEXT(CALL(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *)mode));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return IN_CONTEXT(CALL(cuGraphInstantiateWithFlags, 11040, exec, graph, flags));
}

static cudaError_t cudaGraphLaunch_flavour(bool per_thread, cudaGraphExec_t exec,
                                           cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuGraphLaunch, 10000, 10000, exec, stream));
}
TWINS(cudaGraphLaunch, ptsz, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return IN_CONTEXT(CALL(cuGraphExecDestroy, 10000, exec));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return IN_CONTEXT(CALL(cuGraphDestroy, 10000, graph));
}
