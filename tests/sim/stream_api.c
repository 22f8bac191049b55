/* SPDX-License-Identifier: BSD-2-Clause */
/* The exported stream functions, without those for captures, copies and launches. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/event.h"
#include "tests/sim/thread.h"

static CUresult create(CUstream *out, unsigned flags)
{
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_take(thread_current(), config.object_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = stream_create(thread_current(),
                         flags & CU_STREAM_NON_BLOCKING ? STREAM_NON_BLOCKING : STREAM_BLOCKING);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (stream->kind == STREAM_LEGACY || stream->kind == STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    clock_run();
    context_give(stream->context, config.object_bytes);
    stream_destroy(stream);
    return CUDA_SUCCESS;
}

static CUresult query(CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS)
        rc = capture_stream_unsafe(stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    clock_poll();
    if (!work_done(stream_frontier(stream)))
        return CUDA_ERROR_NOT_READY;
    vector_join(&stream_host_clock, &stream->clock);
    return stream->context->error;
}

static CUresult synchronize(CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS)
        rc = capture_stream_unsafe(stream);
    return rc == CUDA_SUCCESS ? stream_wait(stream) : rc;
}

static CUresult wait_event(CUstream handle, CUevent event, unsigned flags)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    return rc == CUDA_SUCCESS ? event_order_stream(event, stream, flags) : rc;
}

static CUresult get_context(CUstream handle, CUcontext *out)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS && out == NULL)
        rc = CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        *out = stream->context;
    return rc;
}

/* For a stream of a green context: that context, and the primary context of the device
 * (documented). */
static CUresult get_contexts(CUstream handle, CUcontext *out, CUgreenCtx *green)
{
    CUresult rc = get_context(handle, out);
    if (rc == CUDA_SUCCESS && green != NULL)
        *green = (*out)->green;
    if (rc == CUDA_SUCCESS)
        *out = context_owner(*out);
    return rc;
}

/* At least, the default, is the only way that is simulated. */
static CUresult wait_value(CUstream handle, uint64_t addr, uint32_t value, unsigned flags)
{
    CUstream stream;
    struct command command = {.kind = COMMAND_WAIT_MEMORY,
                              .wait_memory = {.addr = addr, .value = value}};
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS && (flags != CU_STREAM_WAIT_VALUE_GEQ || addr % 4 != 0))
        rc = CUDA_ERROR_INVALID_VALUE;
    return rc == CUDA_SUCCESS ? stream_submit(stream, &command) : rc;
}

static CUresult launch_host_function(CUstream handle, CUhostFn function, void *data)
{
    CUstream stream;
    struct command command = {.kind = COMMAND_HOST_FUNCTION, .host = {function, data}};
    CUresult rc = stream_resolve(handle, &stream);
    if (rc == CUDA_SUCCESS && function == NULL)
        rc = CUDA_ERROR_INVALID_VALUE;
    return rc == CUDA_SUCCESS ? stream_submit(stream, &command) : rc;
}

API(cuStreamCreate, (CUstream * out, unsigned flags), create(out, flags))
API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority), create(out, flags))
API(cuStreamDestroy_v2, (CUstream handle), destroy(handle))
API_BOTH(cuStreamQuery, cuStreamQuery_ptsz, (CUstream handle), query(STREAM(handle)))
API_BOTH(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream handle),
         synchronize(STREAM(handle)))
API_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
         (CUstream handle, CUevent event, unsigned flags), wait_event(STREAM(handle), event, flags))
API_BOTH(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream handle, CUcontext *out),
         get_context(STREAM(handle), out))
API_BOTH(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
         (CUstream handle, CUcontext *out, CUgreenCtx *green),
         get_contexts(STREAM(handle), out, green))
API_BOTH(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags),
         wait_value(STREAM(handle), addr, value, flags))
API_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream handle, CUhostFn function, void *data),
         launch_host_function(STREAM(handle), function, data))
