/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that allocate. The driver gets what the pool does not serve, with the
 * caller's arguments, and its answer is the program's. No lock.
 */
#include "shim/entry/alloc.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/context/redzone.h"
#include "shim/control/flush.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/hooks.h"
#include "shim/entry/current.h"
#include "shim/entry/oom.h"
#include "shim/entry/retry.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"
#include "shim/trace/fast.h"
#include "shim/trace/steps.h"

#include <errno.h>

/* How long an allocation that would fail waits for pending memory, to give it back. */
#define RELEASE_WAIT_NS SEC_NS

/* Neither the pool nor the driver has memory. Other contexts of the device may hold idle memory. */
static bool release_elsewhere(const struct context *c)
{
    struct pool_trim all = {.wait_ns = RELEASE_WAIT_NS};
    return context_trim(atomic_load(&flush_at_oom) ? -1 : c->device, &all) > 0;
}

/* What an allocation seldom has to do before it asks the pool. False: ask the driver. */
static SHIM_COLD bool prepare_alloc(const struct context *c, size_t *size_bytes)
{
    if (state_detours() & STATE_DETOUR_FLUSH)
        flush_serve_request();
    return !__builtin_add_overflow(*size_bytes, c->redzone_bytes, size_bytes);
}

enum served {
    SERVED,        /* *rc is the program's answer */
    SERVED_LIMIT,  /* the same: an error, because of GPUCACHE_MAX_RESERVED */
    SERVED_NOT,    /* not for the pool: the driver is asked */
    SERVED_IN_VAIN /* the pool has tried all else; *rc is the driver's error for its last call */
};

/* Handles the pool's answer, where that is not plain memory. */
static SHIM_COLD enum served finish_alloc(struct context *c, uint64_t addr, size_t size_bytes,
                                          enum pool_status status, int code, CUdeviceptr *dptr,
                                          CUresult *rc)
{
    if (status == POOL_NOMEM && release_elsewhere(c))
        status = pool_alloc(c->pool, size_bytes, &addr, &code);
    switch (status) {
    case POOL_OK:
        if (c->redzone_bytes && !redzone_fill(c, addr + size_bytes - c->redzone_bytes)) {
            pool_free(addr);
            return SERVED_NOT;
        }
        *dptr = addr;
        *rc = CUDA_SUCCESS;
        return SERVED;
    case POOL_NOMEM:
    case POOL_LIMIT:
        *rc = (CUresult)code;
        return status == POOL_NOMEM ? SERVED_IN_VAIN : SERVED_LIMIT;
    case POOL_PASS:
    case POOL_FOREIGN:
    case POOL_INVALID:
        break;
    }
    return SERVED_NOT;
}

static inline enum served serve_alloc(struct context *c, CUdeviceptr *dptr, size_t size_bytes,
                                      CUresult *rc)
{
    uint64_t addr = 0;
    int code = 0;
    bool plain = !c->redzone_bytes;
    if (unlikely(!plain || state_detours() & STATE_DETOUR_FLUSH) && !prepare_alloc(c, &size_bytes))
        return SERVED_NOT;
    enum pool_status status = pool_alloc_slowly(c->pool, size_bytes, &addr, &code);
    if (unlikely(status != POOL_OK || !plain))
        return finish_alloc(c, addr, size_bytes, status, code, dptr, rc);
    *dptr = addr;
    *rc = CUDA_SUCCESS;
    return SERVED;
}

/* A call of the program's, with its own arguments. */
struct own_call {
    CUdeviceptr *dptr;
    size_t *pitch, width, height; /* pitch NULL: plain memory of width bytes */
    unsigned element_size;
    CUresult rc;
};

static void make_own_call(void *arg)
{
    struct own_call *call = arg;
    call->rc = call->pitch ? real.cuMemAllocPitch_v2(call->dptr, call->pitch, call->width,
                                                     call->height, call->element_size)
                           : real.cuMemAlloc_v2(call->dptr, call->width);
}

/* The last step before the error: the call that the program made, on the driver. The pool asks for
 * memory in other ways and in larger pieces. Some drivers, or what stands before them, refuse those
 * and serve this one. It breaks no open capture, as the pool's own calls do not. */
static SHIM_COLD CUresult try_own_call(const struct context *c, struct own_call *call)
{
    TRACE_STEP(OWN_CALL);
    if (call_scope_run(NULL, make_own_call, call) && retry_is_error(call->rc))
        retry_note_error(call->rc);
    pool_note_nomem(c->pool, call->rc == CUDA_SUCCESS);
    counter_add(COUNTER_DRIVER, call->rc == CUDA_SUCCESS);
    return call->rc;
}

/* The driver serves the request. A request that fits the device is made again after idle memory of
 * the pools went back (shim/entry/retry.h). */
static SHIM_COLD CUresult pass_alloc(const struct context *c, CUdeviceptr *dptr, size_t size_bytes)
{
    bool never_fits = c && size_bytes > c->backend.base.total_bytes;
    CUresult rc =
        never_fits ? real.cuMemAlloc_v2(dptr, size_bytes) : retry_cuMemAlloc_v2(dptr, size_bytes);
    if (rc == CUDA_SUCCESS)
        counter_add(COUNTER_DRIVER, 1);
    return rc;
}

/* Most allocations end here: a thread gets a block that it has just freed. */
static inline uint64_t take_fast(size_t size_bytes)
{
    struct pool *p = context_quick_pool();
    return likely(!state_detours()) ? pool_alloc_fast(p, size_bytes) : 0;
}

/* The same where a trace alone stands in the way. */
static inline uint64_t take_traced(size_t size_bytes)
{
    return state_detours() & ~STATE_DETOUR_TRACE
               ? 0
               : pool_alloc_fast(context_quick_pool(), size_bytes);
}

/* What the driver and the runtime ask the pool for, where the fast path has nothing. call is the
 * one that the program made. NULL: the runtime makes it, if the pool has tried all else in vain. */
static SHIM_COLD enum served alloc_in_pool(struct context *c, CUdeviceptr *dptr, size_t size_bytes,
                                           struct own_call *call, CUresult *rc)
{
    int saved_errno = errno;
    enum served served = serve_alloc(c, dptr, size_bytes, rc);
    if (served == SERVED_IN_VAIN && call) {
        call->rc = *rc;
        *rc = try_own_call(c, call);
    }
    errno = saved_errno;
    return served;
}

static SHIM_COLD CUresult alloc_untraced(CUdeviceptr *dptr, size_t bytesize, enum served *served)
{
    CUresult rc;
    *served = SERVED_NOT;
    if (!dptr || !bytesize)
        return real.cuMemAlloc_v2(dptr, bytesize);
    struct context *c = current_context();
    struct own_call call = {.dptr = dptr, .width = bytesize};
    if (c && c->pool)
        *served = alloc_in_pool(c, dptr, bytesize, &call, &rc);
    if (*served != SERVED_NOT)
        return rc;
    return pass_alloc(c, dptr, bytesize);
}

/* Before an allocation of the slow way, while a trace is on. Returns the time. */
static SHIM_COLD uint64_t begin_traced(size_t size_bytes)
{
    trace_steps_begin(size_bytes);
    return clock_now_ns();
}

/* Records an allocation that took the slow way. caller: the code that asked. */
static SHIM_COLD void note_alloc(CUresult rc, enum served served, const CUdeviceptr *dptr,
                                 size_t size_bytes, uint64_t begin_ns, const void *caller)
{
    uint32_t took_ns = trace_aux(clock_now_ns() - begin_ns);
    trace_steps_end(rc == CUDA_SUCCESS);
    if (rc != CUDA_SUCCESS)
        oom_note(rc, size_bytes, caller, took_ns, served == SERVED_LIMIT);
    else if (pool_owns(*dptr))
        TRACE_CALL(ALLOC, .a = *dptr, .b = size_bytes, .aux = took_ns, .caller = caller);
    else
        TRACE_CALL(ALLOC_DRIVER, .a = *dptr, .b = size_bytes, .aux = took_ns, .caller = caller);
}

static __attribute__((noinline)) CUresult alloc_traced(CUdeviceptr *dptr, size_t bytesize,
                                                       const void *caller)
{
    uint64_t addr = likely(dptr) ? take_traced(bytesize) : 0;
    if (unlikely(!addr)) {
        uint64_t begin_ns = begin_traced(bytesize);
        enum served served;
        CUresult rc = alloc_untraced(dptr, bytesize, &served);
        note_alloc(rc, served, dptr, bytesize, begin_ns, trace_asker ? trace_asker : caller);
        return rc;
    }
    *dptr = addr;
    trace_note_alloc(addr, bytesize, trace_asker ? trace_asker : caller);
    return CUDA_SUCCESS;
}

static __attribute__((noinline)) CUresult alloc_slowly(CUdeviceptr *dptr, size_t bytesize,
                                                       const void *caller)
{
    if (state_detours() & STATE_DETOUR_TRACE)
        return alloc_traced(dptr, bytesize, caller);
    enum served served;
    CUresult rc = alloc_untraced(dptr, bytesize, &served);
    if (trace_is_on()) /* since this call: it started the library */
        note_alloc(rc, served, dptr, bytesize, clock_now_ns(), trace_asker ? trace_asker : caller);
    return rc;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    uint64_t addr = likely(dptr) ? take_fast(bytesize) : 0;
    if (unlikely(!addr))
        return alloc_slowly(dptr, bytesize, __builtin_return_address(0));
    *dptr = addr;
    return CUDA_SUCCESS;
}

/* Allocates a row of one byte to learn the alignment. The row is freed in stream order, on a stream
 * of its own. A plain free would wait for all work of the program, even for a kernel that never
 * ends. If the library gets no stream, the row stays allocated. */
static void ask_alignment(void *arg)
{
    size_t pitch = 0, *out = arg;
    CUdeviceptr row;
    CUstream stream;
    if (real.cuMemAllocPitch_v2(&row, &pitch, 1, 1, 4) != CUDA_SUCCESS)
        return;
    *out = pitch;
    if (real.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return;
    real.cuMemFreeAsync(row, stream);
    real.cuStreamDestroy_v2(stream);
}

/* The driver aligns rows to a fixed number of bytes. The library asks for it once in each context.
 * False: the driver did not say. */
static bool find_row_bytes(struct context *c, size_t width, size_t *row)
{
    int saved_errno = errno;
    size_t align = atomic_load_explicit(&c->pitch_bytes, memory_order_relaxed);
    if (!align && call_scope_run(c->backend.ctx, ask_alignment, &align))
        atomic_store_explicit(&c->pitch_bytes, align, memory_order_relaxed);
    *row = round_up(width, align);
    errno = saved_errno;
    return align && (align & (align - 1)) == 0;
}

static CUresult alloc_pitch(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                            unsigned element_size, enum served *served)
{
    CUresult rc;
    size_t row = 0, bytes;
    *served = SERVED_NOT;
    bool sane = dptr && pitch && width && height && width < SIZE_MAX / 2 &&
                (element_size == 4 || element_size == 8 || element_size == 16);
    struct context *c = sane ? current_context() : NULL;
    if (c && c->pool && find_row_bytes(c, width, &row) &&
        !__builtin_mul_overflow(row, height, &bytes)) {
        struct own_call call = {dptr, pitch, width, height, element_size, CUDA_SUCCESS};
        *served = alloc_in_pool(c, dptr, bytes, &call, &rc);
        if (*served == SERVED && rc == CUDA_SUCCESS)
            *pitch = row;
        if (*served != SERVED_NOT)
            return rc;
    }
    rc = retry_cuMemAllocPitch_v2(dptr, pitch, width, height, element_size);
    if (rc == CUDA_SUCCESS)
        counter_add(COUNTER_DRIVER, 1);
    return rc;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                            unsigned element_size)
{
    uint64_t begin_ns = trace_is_on() ? begin_traced(width * height) : 0;
    enum served served;
    CUresult rc = alloc_pitch(dptr, pitch, width, height, element_size, &served);
    if (unlikely(begin_ns))
        note_alloc(rc, served, dptr, rc == CUDA_SUCCESS ? *pitch * height : width * height,
                   begin_ns, __builtin_return_address(0));
    return rc;
}

static SHIM_COLD bool runtime_malloc_slowly(void **p, size_t size_bytes)
{
    CUresult rc;
    CUdeviceptr at;
    struct context *c = p && size_bytes ? current_context() : NULL;
    if (!c || !c->pool || alloc_in_pool(c, &at, size_bytes, NULL, &rc) != SERVED ||
        rc != CUDA_SUCCESS)
        return false;
    *p = (void *)(uintptr_t)at;
    return true;
}

static __attribute__((noinline)) bool runtime_malloc_traced(void **p, size_t size_bytes,
                                                            const void *caller)
{
    uint64_t addr = likely(p) ? take_traced(size_bytes) : 0;
    if (unlikely(!addr)) {
        uint64_t begin_ns = begin_traced(size_bytes);
        if (!runtime_malloc_slowly(p, size_bytes)) {
            trace_steps_end(false);
            return false; /* the runtime asks the driver, whose wrapper records it */
        }
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)*p;
        note_alloc(CUDA_SUCCESS, SERVED, &at, size_bytes, begin_ns, caller);
        return true;
    }
    *p = (void *)(uintptr_t)addr;
    trace_note_alloc(addr, size_bytes, caller);
    return true;
}

bool entry_runtime_malloc(void **p, size_t size_bytes, const void *caller)
{
    uint64_t addr = likely(p) ? take_fast(size_bytes) : 0;
    if (unlikely(!addr))
        return state_detours() & STATE_DETOUR_TRACE ? runtime_malloc_traced(p, size_bytes, caller)
                                                    : runtime_malloc_slowly(p, size_bytes);
    *p = (void *)(uintptr_t)addr;
    return true;
}
