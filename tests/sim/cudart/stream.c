/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The runtime's streams and events, with the per-thread twins of those that take a stream. The
 * handles are the driver's own. No state of its own.
 */
#include "tests/sim/cudart/cudart.h"

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return IN_CONTEXT(CALL(cuStreamCreate, 2000, stream, CU_STREAM_DEFAULT));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return IN_CONTEXT(CALL(cuStreamCreate, 2000, stream, flags));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return IN_CONTEXT(CALL(cuStreamDestroy, 4000, stream));
}

static cudaError_t cudaStreamSynchronize_flavour(bool per_thread, cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuStreamSynchronize, 2000, 7000, stream));
}
TWINS(cudaStreamSynchronize, ptsz, (cudaStream_t stream), (stream))

static cudaError_t cudaStreamQuery_flavour(bool per_thread, cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuStreamQuery, 2000, 7000, stream));
}
TWINS(cudaStreamQuery, ptsz, (cudaStream_t stream), (stream))

static cudaError_t cudaStreamWaitEvent_flavour(bool per_thread, cudaStream_t stream,
                                               cudaEvent_t event, unsigned flags)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuStreamWaitEvent, 3020, 7000, stream, event, flags));
}
TWINS(cudaStreamWaitEvent, ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
      (stream, event, flags))

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return IN_CONTEXT(CALL(cuEventCreate, 2000, event, flags));
}

static cudaError_t cudaEventRecord_flavour(bool per_thread, cudaEvent_t event, cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuEventRecord, 2000, 7000, event, stream));
}
TWINS(cudaEventRecord, ptsz, (cudaEvent_t event, cudaStream_t stream), (event, stream))

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return IN_CONTEXT(CALL(cuEventQuery, 2000, event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return IN_CONTEXT(CALL(cuEventSynchronize, 2000, event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return IN_CONTEXT(CALL(cuEventDestroy, 4000, event));
}

