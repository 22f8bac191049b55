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
    REFUSE(out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0, INVALID_VALUE);
    REFUSE(!context_take(thread_current(), config.object_bytes), OUT_OF_MEMORY);
    *out = stream_create(thread_current(),
                         flags & CU_STREAM_NON_BLOCKING ? STREAM_NON_BLOCKING : STREAM_BLOCKING);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUstream handle)
{
    CUstream stream;
    TRY(stream_resolve(handle, &stream));
    REFUSE(stream->kind == STREAM_LEGACY || stream->kind == STREAM_PER_THREAD, INVALID_HANDLE);
    clock_run();
    context_give(stream->context, config.object_bytes);
    stream_destroy(stream);
    return CUDA_SUCCESS;
}

static CUresult query(CUstream stream)
{
    TRY(capture_stream_unsafe(stream));
    clock_poll();
    REFUSE(!work_done(stream_frontier(stream)), NOT_READY);
    vector_join(&stream_host_clock, &stream->clock);
    return stream->context->error;
}

static CUresult synchronize(CUstream stream)
{
    TRY(capture_stream_unsafe(stream));
    return stream_wait(stream);
}

/* For a stream of a green context: that context, and the primary context of the device
 * (documented). */
static CUresult get_contexts(CUcontext context, CUcontext *out, CUgreenCtx *green)
{
    if (green != NULL)
        *green = context->green;
    *out = context_owner(context);
    return CUDA_SUCCESS;
}

/* At least, the default, is the only way that is simulated. */
static CUresult wait_value(CUstream stream, uint64_t addr, uint32_t value)
{
    struct command command = {.kind = COMMAND_WAIT_MEMORY,
                              .wait_memory = {.addr = addr, .value = value}};
    return stream_submit(stream, &command);
}

static CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *ops)
{
    for (unsigned i = 0; i < count; i++)
        TRY(ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32
                ? wait_value(stream, ops[i].waitValue.address, ops[i].waitValue.value)
                : CUDA_ERROR_NOT_SUPPORTED);
    return CUDA_SUCCESS;
}

API(cuStreamCreate, (CUstream * out, unsigned flags), create(out, flags))
API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority), create(out, flags))
API(cuStreamDestroy_v2, (CUstream handle), destroy(handle))
API_STREAM(cuStreamQuery, cuStreamQuery_ptsz, (CUstream handle), STREAM(handle), query(on))
API_STREAM(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream handle), STREAM(handle),
           synchronize(on))
API_STREAM(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
           (CUstream handle, CUevent event, unsigned flags), STREAM(handle),
           event_order_stream(event, on, flags))
API_STREAM(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream handle, CUcontext *out), STREAM(handle),
           NEEDS(out != NULL, INVALID_VALUE) GIVE(out, on->context))
API_STREAM(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
           (CUstream handle, CUcontext *out, CUgreenCtx *green), STREAM(handle),
           NEEDS(out != NULL, INVALID_VALUE) get_contexts(on->context, out, green))
API_STREAM(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
           (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags), STREAM(handle),
           NEEDS(flags == CU_STREAM_WAIT_VALUE_GEQ && addr % 4 == 0, INVALID_VALUE)
               wait_value(on, addr, value))
API_STREAM(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
           (CUstream handle, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags),
           STREAM(handle), batch(on, count, ops))
API_STREAM(cuLaunchHostFunc, cuLaunchHostFunc_ptsz,
           (CUstream handle, CUhostFn function, void *data), STREAM(handle),
           NEEDS(function != NULL, INVALID_VALUE)
               stream_submit(on, &(struct command){.kind = COMMAND_HOST_FUNCTION,
                                                   .host = {function, data}}))
