/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that end contexts, and those that keep them alive. A context's end frees
 * its allocations without a call for each; an arena's memory outlives it (measured) and is given
 * back here. The pool is closed to new requests first, then the driver ends the context and with it
 * all its work, then the memory goes (context_end_begins and context_end_finish). No lock is held
 * over a driver call.
 */
#include "shim/entry/answer.h"
#include "shim/entry/stream.h"
#include "shim/process/cancel.h"
#include "shim/driver/capture.h"
#include "shim/context/context.h"
#include "shim/context/green.h"
#include "shim/driver/hooks.h"
#include "shim/process/state.h"
#include "shim/context/stream.h"

#include <pthread.h>

enum { ATTACHED_MAX = 256 };

/* Created contexts that were attached, and how often more than they were detached. Has a lock of
 * its own, held over no driver call. An attachment counts before the driver is asked, a detachment
 * too: whoever finds no other use left is the last, and who attached in vain is not counted. */
static struct attached {
    CUcontext ctx;
    unsigned uses;
} attached[ATTACHED_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Its row; for NULL, a free one. Lock held. */
static struct attached *find(CUcontext ctx)
{
    for (struct attached *a = attached; a < attached + ATTACHED_MAX; a++)
        if (a->ctx == ctx)
            return a;
    return NULL;
}

static void attach(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find(ctx);
    if (!a && (a = find(NULL)))
        a->ctx = ctx;
    if (a)
        a->uses++;
    pthread_mutex_unlock(&lock);
}

/* False: there was none but the first use, of who created it. */
static bool detach(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find(ctx);
    if (a && --a->uses == 0)
        a->ctx = NULL;
    pthread_mutex_unlock(&lock);
    return a;
}

static void forget(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find(ctx);
    if (a)
        *a = (struct attached){0};
    pthread_mutex_unlock(&lock);
}

static CUresult destroy(CUresult (*how)(CUcontext), CUcontext ctx)
{
    struct context_end end;
    int cancel = cancel_forbid();
    context_destroy_begins(&end, ctx);
    CUresult rc = how(ctx);
    if (rc == CUDA_SUCCESS && ctx)
        forget(ctx);
    context_end_finish(&end, rc == CUDA_SUCCESS);
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

static CUcontext current(void)
{
    CUcontext ctx = NULL;
    return real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS ? ctx : NULL;
}

/* An attachment in vain may have been what another thread's detachment took for a use. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    struct context_end end;
    CUcontext here = hooks_init() ? current() : NULL;
    if (!here)
        return real.cuCtxAttach(ctx, flags);
    int cancel = cancel_forbid();
    attach(here);
    CUresult rc = real.cuCtxAttach(ctx, flags);
    if (rc != CUDA_SUCCESS && !detach(here)) {
        context_destroy_begins(&end, here);
        context_end_finish(&end, !context_is_alive(here));
    }
    cancel_allow(cancel);
    return rc;
}

/* The last use ends it. The context was current: if it still is, the driver can be asked whether it
 * lives, and that goes before the count, which misses uses that were taken past us. */
static CUresult detach_last(CUcontext ctx)
{
    struct context_end end;
    context_destroy_begins(&end, ctx);
    CUresult rc = real.cuCtxDetach(ctx);
    bool lives = rc != CUDA_SUCCESS || (ctx && current() == ctx && context_is_alive(ctx));
    context_end_finish(&end, !lives);
    return rc;
}

CUresult cuCtxDetach(CUcontext ctx)
{
    int cancel = cancel_forbid();
    bool counted = ctx && detach(ctx);
    CUresult rc = counted ? real.cuCtxDetach(ctx) : detach_last(ctx);
    if (counted && rc != CUDA_SUCCESS)
        attach(ctx);
    cancel_allow(cancel);
    return rc;
}

/* The handle stays the same when the context comes to life again. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult rc = answer_cuDevicePrimaryCtxRetain(ctx, dev);
    if (rc == CUDA_SUCCESS) {
        int cancel = cancel_forbid();
        context_retained(dev, *ctx);
        cancel_allow(cancel);
    }
    return rc;
}

/* A reset ends the primary context at once, a release with the last of its users. */
static CUresult end_primary(CUresult (*how)(CUdevice), CUdevice dev, bool reset)
{
    struct context_end end;
    int cancel = cancel_forbid();
    context_release_begins(&end, dev, reset);
    CUresult rc = how(dev);
    context_end_finish(&end, rc == CUDA_SUCCESS);
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

/* A green context is one of the users of its device's primary context. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct context_end end;
    CUcontext ctx = NULL;
    int cancel = cancel_forbid();
    if (green && state_is_on() && hooks_present(HOOK_cuCtxFromGreenCtx))
        real.cuCtxFromGreenCtx(&ctx, green);
    context_release_begins(&end, -1, false);
    CUresult rc = real.cuGreenCtxDestroy(green);
    if (rc == CUDA_SUCCESS && ctx) {
        green_forget(ctx);
        entry_captures_closed(capture_forget(ctx));
    }
    context_end_finish(&end, rc == CUDA_SUCCESS);
    cancel_allow(cancel);
    return rc;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags)
{
    green_expect();
    return answer_cuGreenCtxCreate(green, desc, dev, flags);
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
    CUresult rc = real.cuCtxFromGreenCtx(ctx, green);
    if (rc == CUDA_SUCCESS)
        stream_give_up();
    return rc;
}
