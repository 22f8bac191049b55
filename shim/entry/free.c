/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that free. An address that is not the pool's goes to the driver, and its
 * answer is the program's. No lock.
 */
#include "shim/entry/free.h"

#include "shim/context/context.h"
#include "shim/context/redzone.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"
#include "shim/trace/beside.h"
#include "shim/trace/fast.h"

#include <errno.h>

/* For a status other than POOL_OK. True: *rc is the program's answer. False: ask the driver. */
static SHIM_COLD bool refuse_free(enum pool_status status, CUdeviceptr dptr, CUresult *rc)
{
    struct pool_block block;
    if (status != POOL_INVALID || context_lookup(dptr, &block) == POOL_FOREIGN)
        return false;
    /* The driver must not get the address: it would free an idle segment that the pool holds. */
    counter_add(COUNTER_INVALID_FREE, 1);
    CUresult loss = context_loss_here();
    *rc = loss != CUDA_SUCCESS ? loss : CUDA_ERROR_INVALID_VALUE;
    return true;
}

/* For an address in a context that is not lost. */
static inline enum pool_status free_in_pool(CUdeviceptr dptr)
{
    int saved_errno = errno;
    if (redzone_watches())
        redzone_check(dptr);
    enum pool_status status = pool_free_slowly(dptr);
    errno = saved_errno;
    if (likely(status == POOL_OK))
        control_ensure_thread();
    return status;
}

/* True: *rc is the program's answer. False: the pointer is not the pool's. */
static inline bool serve_free(CUdeviceptr dptr, CUresult *rc)
{
    if (unlikely(!state_is_on()))
        return false;
    *rc = context_loss_at(dptr);
    if (unlikely(*rc != CUDA_SUCCESS))
        return true;
    enum pool_status status = free_in_pool(dptr);
    return likely(status == POOL_OK) || refuse_free(status, dptr, rc);
}

/* Quick frees skip this: the next slow free gives back the memory that is due. */
static void release_at_free(CUdeviceptr dptr)
{
    if (likely(!atomic_load_explicit(&pool_release_due, memory_order_relaxed)))
        return;
    int saved_errno = errno;
    pool_release_at_free(dptr);
    errno = saved_errno;
}

static CUresult pass_free(CUdeviceptr dptr)
{
    if (dptr && state_is_on())
        counter_add(COUNTER_FOREIGN_FREE, 1);
    return retry_cuMemFree_v2(dptr);
}

static SHIM_COLD CUresult free_of_pool(CUdeviceptr dptr)
{
    CUresult rc;
    if (!serve_free(dptr, &rc))
        return pass_free(dptr);
    release_at_free(dptr);
    return rc;
}

/* Most pointers that come here are not the pool's, so the test must be cheap. */
static __attribute__((noinline)) CUresult free_slowly(CUdeviceptr dptr)
{
    return pool_owns(dptr) ? free_of_pool(dptr) : pass_free(dptr);
}

static __attribute__((noinline)) CUresult free_traced(CUdeviceptr dptr, const void *caller)
{
    if (dptr)
        trace_note_fast(TRACE_FREE, dptr, 0, caller);
    if (likely(pool_free_fast(dptr)))
        return CUDA_SUCCESS;
    if (dptr && !pool_owns(dptr))
        trace_beside_keep(TRACE_FREE, dptr);
    CUresult rc = free_slowly(dptr);
    if (unlikely(rc != CUDA_SUCCESS))
        TRACE_BESIDE(FREE_FAILED, 0, .a = dptr, .b = (uint64_t)rc, .caller = caller);
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    if (trace_is_on())
        return free_traced(dptr, __builtin_return_address(0));
    return likely(pool_free_fast(dptr)) ? CUDA_SUCCESS : free_slowly(dptr);
}

/* The driver did not say whether the stream captures. Its reason may be the stream, as it would be
 * of the program's own call, or one of that question alone. True: the stream is good and does not
 * capture. False: *rc is the program's answer. */
static SHIM_COLD bool is_good_stream(CUdeviceptr dptr, CUstream stream, CUresult *rc)
{
    CUcontext ctx;
    retry_note_error(*rc);
    CUresult loss = context_loss_at(dptr);
    if (loss != CUDA_SUCCESS)
        *rc = loss;
    return loss == CUDA_SUCCESS && !capture_open() && real.cuStreamGetCtx &&
           real.cuStreamGetCtx(stream, &ctx) == CUDA_SUCCESS;
}

/* The driver allows this for memory of cuMemAlloc outside a capture. Its free takes effect behind
 * all work submitted to the stream so far. A free in the pool covers that work too. */
static bool serve_free_async(CUdeviceptr dptr, CUstream stream, const void *caller, CUresult *rc)
{
    struct pool_block block;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!state_is_on() || pool_lookup(dptr, &block) == POOL_FOREIGN)
        return false;
    if (!hooks_present(HOOK_cuStreamIsCapturing))
        return false;
    *rc = real.cuStreamIsCapturing(stream, &status);
    if (*rc != CUDA_SUCCESS && !is_good_stream(dptr, stream, rc))
        return true;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        return false; /* no memory of a graph: the driver refuses it with its own error */
    counter_add(COUNTER_ASYNC_FREE, 1);
    TRACE(FREE, .a = dptr, .caller = caller);
    bool served = serve_free(dptr, rc);
    if (!served || *rc != CUDA_SUCCESS)
        TRACE_CALL(FREE_FAILED, .a = dptr, .b = served ? (uint64_t)*rc : 0, .caller = caller);
    return served;
}

/* The driver frees memory of its own: what it allocated in stream order, or a block that it served
 * in the pool's place. */
static CUresult pass_free_async(CUdeviceptr dptr, CUstream stream, const void *caller,
                                CUresult (*how)(CUdeviceptr dptr, CUstream stream))
{
    TRACE_BESIDE(FREE_ASYNC, 0, .a = dptr, .caller = caller);
    CUresult rc = how(dptr, stream);
    if (rc != CUDA_SUCCESS)
        TRACE_BESIDE(FREE_FAILED, 0, .a = dptr, .b = (uint64_t)rc, .caller = caller);
    return rc;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
    CUresult rc;
    const void *caller = __builtin_return_address(0);
    return serve_free_async(dptr, stream, caller, &rc)
               ? rc
               : pass_free_async(dptr, stream, caller, retry_cuMemFreeAsync);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
    CUresult rc;
    CUstream named = stream ? stream : CU_STREAM_PER_THREAD;
    const void *caller = __builtin_return_address(0);
    return serve_free_async(dptr, named, caller, &rc)
               ? rc
               : pass_free_async(dptr, stream, caller, retry_cuMemFreeAsync_ptsz);
}

static inline bool has_context(void)
{
    CUcontext ctx;
    return likely(real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx);
}

static SHIM_COLD enum entry_freed runtime_free_slowly(void *p)
{
    uint64_t addr = (uint64_t)(uintptr_t)p;
    if (!state_is_on() || !has_context() || context_loss_at(addr) != CUDA_SUCCESS)
        return ENTRY_PASSED;
    if (free_in_pool(addr) != POOL_OK)
        return ENTRY_PASSED;
    release_at_free(addr);
    return ENTRY_FREED;
}

enum entry_freed entry_runtime_free(void *p, const void *caller)
{
    /* What is passed, the driver's wrapper records. */
    if (trace_is_on() && pool_owns((uint64_t)(uintptr_t)p))
        trace_note_fast(TRACE_FREE, (uint64_t)(uintptr_t)p, 0, caller);
    if (unlikely(!pool_free_fast((uint64_t)(uintptr_t)p)))
        return pool_owns((uint64_t)(uintptr_t)p) ? runtime_free_slowly(p) : ENTRY_PASSED;
    return has_context() ? ENTRY_FREED : ENTRY_FREED_WITHOUT_CONTEXT;
}

bool entry_in_pool(const void *p)
{
    struct pool_block block;
    return p && state_is_on() && pool_lookup((uint64_t)(uintptr_t)p, &block) != POOL_FOREIGN;
}
