/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See green_context.h. A program gets a green context's handle in several ways (cuCtxFromGreenCtx,
 * cuStreamGetCtx), so the driver is asked, once for each context. Rows change under a lock that is
 * not held over a driver call, and are read without it.
 */
#include "shim/context/green_context.h"

#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GREENS_MAX = 256 };

static struct green {
    _Atomic(CUcontext) ctx;
    _Atomic(CUcontext) primary; /* written before ctx */
} greens[GREENS_MAX];
static atomic_bool expected;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct green *find_green(CUcontext ctx)
{
    for (struct green *g = greens; g < greens + GREENS_MAX; g++)
        if (atomic_load_explicit(&g->ctx, memory_order_acquire) == ctx)
            return g;
    return NULL;
}

static bool remember_green(CUcontext ctx, CUcontext primary)
{
    pthread_mutex_lock(&lock);
    struct green *g = find_green(ctx);
    if (!g)
        g = find_green(NULL);
    if (g) {
        atomic_store(&g->primary, primary);
        atomic_store(&g->ctx, ctx);
    }
    pthread_mutex_unlock(&lock);
    return g;
}

void green_context_forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct green *g = ctx ? find_green(ctx) : NULL;
    if (g)
        atomic_store(&g->ctx, NULL);
    pthread_mutex_unlock(&lock);
}

void green_context_forget_primary(CUcontext primary)
{
    pthread_mutex_lock(&lock);
    for (struct green *g = greens; g < greens + GREENS_MAX; g++)
        if (atomic_load(&g->ctx) && atomic_load(&g->primary) == primary)
            atomic_store(&g->ctx, NULL);
    pthread_mutex_unlock(&lock);
}

/* The driver names the primary context of the current green context's default stream (documented).
 * We do not retain it: if the last green context ended meanwhile, our reference would keep the
 * primary context alive. */
static CUcontext primary_here(void)
{
    CUdevice device;
    CUcontext primary = NULL;
    CUgreenCtx green = NULL;
    if (real.cuStreamGetCtx_v2 &&
        real.cuStreamGetCtx_v2(CU_STREAM_LEGACY, &primary, &green) == CUDA_SUCCESS && green &&
        primary)
        return primary;
    return real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device_primary(device) : NULL;
}

void green_context_expect(void)
{
    atomic_store(&expected, true);
}

/* The driver is asked only if there may be a green context. The question makes a per-thread stream,
 * with which a forked child crashes when it ends (seen on an H200, driver 580). */
CUcontext green_context_owner(CUcontext ctx)
{
    CUgreenCtx green = NULL;
    if (!atomic_load(&expected))
        return context_is_alive(ctx) ? ctx : NULL;
    struct green *g = find_green(ctx);
    if (g)
        return atomic_load(&g->primary);
    if (!real.cuStreamGetGreenCtx)
        return ctx; /* CUDA 12.4 has the first of them */
    /* A green context has no per-thread default stream (error 400 was seen). Only then do we ask
     * about the legacy one: during a capture elsewhere that question might do harm. */
    CUresult rc = real.cuStreamGetGreenCtx(CU_STREAM_PER_THREAD, &green);
    if (rc == CUDA_ERROR_INVALID_HANDLE)
        rc = real.cuStreamGetGreenCtx(CU_STREAM_LEGACY, &green);
    if (rc != CUDA_SUCCESS)
        return NULL;
    if (!green)
        return ctx;
    single_stream_disable(); /* it has a default stream of its own */
    CUcontext primary = real.cuCtxRecordEvent && real.cuCtxWaitEvent ? primary_here() : NULL;
    return primary && remember_green(ctx, primary) ? primary : NULL;
}
