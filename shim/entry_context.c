/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that end contexts. A context's end frees its allocations without a call for each;
 * an arena's memory outlives it (measured) and is given back here. The pool is closed to new requests first, then the driver ends the context and with
 * it all its work, then the memory goes. No lock.
 */
#include "shim/cancel.h"
#include "shim/capture.h"
#include "shim/context.h"
#include "shim/green.h"
#include "shim/hooks.h"
#include "shim/ipc.h"
#include "shim/peer.h"
#include "shim/state.h"
#include "shim/stream.h"

#include <errno.h>

/* From here on the context is not found any more; NULL: it had no pool. */
static struct context *close_context(CUcontext ctx)
{
    struct context *c = ctx && state_is_on() ? context_find(ctx) : NULL;
    if (c)
        context_close(c);
    return c;
}

static void reopen_context(struct context *c, CUcontext ctx)
{
    if (c)
        context_reopen(c, ctx);
}

static void end_context(struct context *c, CUcontext ctx)
{
    int saved_errno = errno;
    capture_forget(ctx);
    peer_forget(ctx);
    ipc_forget(ctx);
    if (c && c->pool)
        pool_abandon(c->pool);
    if (c)
        atomic_store(&c->ended, true);
    errno = saved_errno;
}

static CUresult destroy(CUresult (*how)(CUcontext), CUcontext ctx)
{
    int cancel = cancel_forbid();
    struct context *c = close_context(ctx);
    CUresult rc = how(ctx);
    if (rc == CUDA_SUCCESS)
        end_context(c, ctx);
    else
        reopen_context(c, ctx);
    cancel_allow(cancel);
    return rc;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy(real.cuCtxDestroy, ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(real.cuCtxDestroy_v2, ctx);
}

CUresult cuCtxDetach(CUcontext ctx)
{
    return destroy(real.cuCtxDetach, ctx);
}

static bool primary_is_active(CUdevice dev)
{
    unsigned flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && active;
}

/* A reset ends the primary context at once, a release with the last of its users. The handle stays the
 * same when the context comes to life again, so it is closed before and, if it lives on, reopened. */
static CUresult end_primary_here(CUresult (*how)(CUdevice), CUdevice dev, bool reset)
{
    CUcontext ctx = NULL;
    struct context *c = state_is_on() ? context_primary(dev) : NULL;
    if (c)
        ctx = atomic_load(&c->handle);
    else if (capture_open() || ipc_any_open())
        ctx = context_primary_handle(dev);
    if (c && reset)
        close_context(ctx);
    CUresult rc = how(dev);
    if (!ctx)
        return rc;
    if (rc == CUDA_SUCCESS && (reset || !primary_is_active(dev))) {
        if (!reset)
            close_context(ctx);
        end_context(c, ctx);
    } else if (reset) {
        reopen_context(c, ctx);
    }
    return rc;
}

static CUresult end_primary(CUresult (*how)(CUdevice), CUdevice dev, bool reset)
{
    int cancel = cancel_forbid();
    CUresult rc = end_primary_here(how, dev, reset);
    cancel_allow(cancel);
    return rc;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxReset, dev, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxReset_v2, dev, true);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxRelease, dev, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxRelease_v2, dev, false);
}

/* Primary contexts that ended with the last of their users. */
static void end_inactive_primaries(void)
{
    int count = 0;
    real.cuDeviceGetCount(&count);
    for (CUdevice device = 0; device < count; device++) {
        struct context *c = context_primary(device);
        if (c && !primary_is_active(device)) {
            CUcontext ctx = atomic_load(&c->handle);
            close_context(ctx);
            end_context(c, ctx);
        }
    }
}

/* A green context is one of the users of its device's primary context. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext ctx = NULL;
    int cancel = cancel_forbid();
    if (green && state_is_on() && hooks_present(HOOK_cuCtxFromGreenCtx))
        real.cuCtxFromGreenCtx(&ctx, green);
    CUresult rc = real.cuGreenCtxDestroy(green);
    if (rc == CUDA_SUCCESS && ctx) {
        green_forget(ctx);
        capture_forget(ctx);
        end_inactive_primaries();
    }
    cancel_allow(cancel);
    return rc;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags)
{
    green_expect();
    return real.cuGreenCtxCreate(green, desc, dev, flags);
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
    CUresult rc = real.cuCtxFromGreenCtx(ctx, green);
    if (rc == CUDA_SUCCESS)
        stream_give_up();
    return rc;
}
