/* SPDX-License-Identifier: BSD-2-Clause */
/* The exported context functions, without those for primary contexts, peers and events. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/thread.h"

static CUresult create(CUcontext *out, CUdevice device)
{
    struct thread *thread = thread_self();
    REFUSE(thread->depth == THREAD_CONTEXTS_MAX, INVALID_VALUE);
    CUcontext context = context_create(device);
    REFUSE(context == NULL, OUT_OF_MEMORY);
    thread->stack[thread->depth++] = context;
    *out = context;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUcontext context)
{
    REFUSE(context == NULL || !context_known(context) || context->primary, INVALID_CONTEXT);
    REFUSE(!context->alive, CONTEXT_IS_DESTROYED);
    context_destroy(context);
    /* Pops the context if it is current. On other stacks it stays, and its use gives
     * CONTEXT_IS_DESTROYED. */
    if (thread_current() == context)
        thread_self()->depth--;
    return CUDA_SUCCESS;
}

/* primary.c counts the uses of a primary context. */
static CUresult attach(CUcontext *out)
{
    CUcontext context = thread_current();
    TRY(context_usable(context));
    REFUSE(context->primary || context->parent != NULL, INVALID_CONTEXT);
    context->uses++;
    *out = context;
    return CUDA_SUCCESS;
}

/* The context has to be current (documented). The last use ends it. */
static CUresult detach(CUcontext context)
{
    if (context == NULL || context != thread_current() || context->primary ||
        context->parent != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    REFUSE(!context->alive, CONTEXT_IS_DESTROYED);
    return --context->uses > 0 ? CUDA_SUCCESS : destroy(context);
}

static CUresult synchronize(void)
{
    CUcontext context = thread_current();
    TRY(context_usable(context));
    TRY(capture_context_unsafe(context, true));
    return context_wait(context);
}

/* A context that the program names, or the current one for NULL. */
static CUcontext named(CUcontext context)
{
    CUcontext one = context != NULL ? context : thread_current();
    return one != NULL && context_known(one) ? one : NULL;
}

static CUresult set_limit(CUlimit limit, size_t value)
{
    CUcontext context = thread_current();
    /* The heap of kernels is device memory. Its initial size is part of the context's own
     * memory. */
    size_t have = context->limits[limit];
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > have && !context_take(context, value - have))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

#define OUT NEEDS(out != NULL, INVALID_VALUE)
#define NEW                                                                                        \
    OUT NEEDS((flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0, INVALID_VALUE) NEEDS_DEVICE(device)
#define LIMIT NEEDS((unsigned)limit < LIMITS_MAX, UNSUPPORTED_LIMIT)
#define NAMED NEEDS(named(context) != NULL, INVALID_CONTEXT)
#define LIVE NEEDS(named(context)->alive, CONTEXT_IS_DESTROYED)

API(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device), NEW create(out, device))
API(cuCtxCreate_v4, (CUcontext * out, CUctxCreateParams *params, unsigned flags, CUdevice device),
    NEEDS(params == NULL || params->cigParams == NULL, NOT_SUPPORTED) NEW create(out, device))
API(cuCtxDestroy_v2, (CUcontext context), destroy(context))
API(cuCtxAttach, (CUcontext * out, unsigned flags),
    OUT NEEDS(flags == 0, INVALID_VALUE) attach(out))
API(cuCtxDetach, (CUcontext context), detach(context))
API(cuCtxSynchronize, (void), synchronize())
API_UNLOCKED(cuCtxGetDevice, (CUdevice * out),
             NEEDS(thread_current() != NULL, INVALID_CONTEXT)
                 OUT GIVE(out, thread_current()->device))
API_UNLOCKED(cuCtxGetId, (CUcontext context, unsigned long long *out),
             NAMED OUT LIVE GIVE(out, named(context)->id))
API(cuCtxGetApiVersion, (CUcontext context, unsigned *out), OUT NAMED LIVE GIVE(out, 3020))
API(cuCtxGetLimit, (size_t *out, CUlimit limit),
    OUT LIMIT GIVE(out, thread_current()->limits[limit]))
API(cuCtxSetLimit, (CUlimit limit, size_t value), LIMIT set_limit(limit, value))
