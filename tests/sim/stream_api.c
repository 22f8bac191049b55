/* SPDX-License-Identifier: BSD-2-Clause */
/* The exported stream functions that are not about captures, copies or launches. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/event.h"
#include "tests/sim/thread.h"

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (priority > LEAST_PRIORITY)
        priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY)
        priority = GREATEST_PRIORITY;
    if (!context_take(thread_current(), config.object_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = stream_create(thread_current(),
                         flags & CU_STREAM_NON_BLOCKING ? STREAM_NON_BLOCKING : STREAM_BLOCKING,
                         flags, priority);
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

/* One answer about a live stream. */
enum question { ASK_PRIORITY, ASK_FLAGS, ASK_ID, ASK_CONTEXT, ASK_DEVICE };

static CUresult ask(CUstream handle, enum question question, void *out)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (question) {
    case ASK_PRIORITY:
        *(int *)out = stream->priority;
        break;
    case ASK_FLAGS:
        *(unsigned *)out = stream->flags;
        break;
    case ASK_ID:
        *(unsigned long long *)out = stream->id;
        break;
    case ASK_CONTEXT:
        *(CUcontext *)out = stream->context;
        break;
    case ASK_DEVICE:
        *(CUdevice *)out = stream->context->device;
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult ask_context(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    CUresult rc = ask(handle, ASK_CONTEXT, context);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (green != NULL)
        *green = (*context)->green;
    if ((*context)->green != NULL)
        *context = (*context)->parent; /* the primary context of the device (so documented) */
    return CUDA_SUCCESS;
}

static CUresult submit(CUstream handle, const struct command *command)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    return rc == CUDA_SUCCESS ? stream_submit(stream, command, NULL) : rc;
}

static CUresult host_function(CUstream handle, CUhostFn function, void *data)
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(handle,
                  &(struct command){.kind = COMMAND_HOST_FUNCTION, .host = {function, data}});
}

static CUresult callback(CUstream handle, CUstreamCallback function, void *data)
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(
        handle, &(struct command){.kind = COMMAND_CALLBACK, .callback = {function, handle, data}});
}

static CUresult word(CUstream handle, enum command_kind kind, CUdeviceptr addr, uint64_t value,
                     unsigned flags, unsigned bytes)
{
    if (addr % bytes != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(handle, &(struct command){.kind = kind, .word = {addr, value, flags, bytes}});
}

static CUresult batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *ops)
{
    CUresult rc = CUDA_SUCCESS;
    if (ops == NULL && count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && rc == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *op = &ops[i];
        switch ((int)op->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            rc = word(handle, COMMAND_WAIT_VALUE, op->waitValue.address, op->waitValue.value,
                      op->waitValue.flags, 4);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            rc = word(handle, COMMAND_WAIT_VALUE, op->waitValue.address, op->waitValue.value64,
                      op->waitValue.flags, 8);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            rc = word(handle, COMMAND_WRITE_VALUE, op->writeValue.address, op->writeValue.value, 0,
                      4);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            rc = word(handle, COMMAND_WRITE_VALUE, op->writeValue.address, op->writeValue.value64,
                      0, 8);
            break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
            break;
        default:
            rc = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return rc;
}

static CUresult priority_range(int *least, int *greatest)
{
    if (least != NULL)
        *least = LEAST_PRIORITY;
    if (greatest != NULL)
        *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

API(cuStreamCreate, (CUstream * out, unsigned flags), create(out, flags, 0))
API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority),
    create(out, flags, priority))
API(cuStreamDestroy, (CUstream handle), destroy(handle))
API(cuStreamDestroy_v2, (CUstream handle), destroy(handle))
API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), priority_range(least, greatest))
API_BOTH(cuStreamQuery, cuStreamQuery_ptsz, (CUstream handle), query(STREAM(handle)))
API_BOTH(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream handle),
         synchronize(STREAM(handle)))
API_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
         (CUstream handle, CUevent event, unsigned flags), wait_event(STREAM(handle), event, flags))
API_BOTH(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream handle, int *out),
         ask(STREAM(handle), ASK_PRIORITY, out))
API_BOTH(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream handle, unsigned *out),
         ask(STREAM(handle), ASK_FLAGS, out))
API_BOTH(cuStreamGetId, cuStreamGetId_ptsz, (CUstream handle, unsigned long long *out),
         ask(STREAM(handle), ASK_ID, out))
API_BOTH(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream handle, CUcontext *out),
         ask(STREAM(handle), ASK_CONTEXT, out))
API_BOTH(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
         (CUstream handle, CUcontext *out, CUgreenCtx *green),
         ask_context(STREAM(handle), out, green))
API_BOTH(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream handle, CUdevice *out),
         ask(STREAM(handle), ASK_DEVICE, out))
API_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream handle, CUhostFn function, void *data),
         host_function(STREAM(handle), function, data))
API_BOTH(cuStreamAddCallback, cuStreamAddCallback_ptsz,
         (CUstream handle, CUstreamCallback function, void *data, unsigned flags),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : callback(STREAM(handle), function, data))
API_BOTH(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WAIT_VALUE, addr, value, flags, 4))
API_BOTH(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WRITE_VALUE, addr, value, flags, 4))
API_BOTH(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WAIT_VALUE, addr, value, flags, 8))
API_BOTH(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WRITE_VALUE, addr, value, flags, 8))
API_BOTH(cuStreamWaitValue32, cuStreamWaitValue32_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WAIT_VALUE, addr, value, flags, 4))
API_BOTH(cuStreamWriteValue32, cuStreamWriteValue32_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint32_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WRITE_VALUE, addr, value, flags, 4))
API_BOTH(cuStreamWaitValue64, cuStreamWaitValue64_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WAIT_VALUE, addr, value, flags, 8))
API_BOTH(cuStreamWriteValue64, cuStreamWriteValue64_ptsz,
         (CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags),
         word(STREAM(handle), COMMAND_WRITE_VALUE, addr, value, flags, 8))
API_BOTH(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz,
         (CUstream handle, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags),
         batch(STREAM(handle), count, ops))
API_BOTH(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
         (CUstream handle, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags),
         batch(STREAM(handle), count, ops))
