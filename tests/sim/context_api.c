/* SPDX-License-Identifier: BSD-2-Clause */
/* The exported context functions but those of primary contexts, peers and events. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/thread.h"

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    if (out == NULL || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct thread *thread = thread_self();
    if (thread->depth == THREAD_CONTEXTS_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = context_create(device);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = context;
    *out = context;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUcontext context)
{
    if (context == NULL || !context_known(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    context_destroy(context);
    /* Popped where it is current on top; elsewhere it stays and answers CONTEXT_IS_DESTROYED. */
    if (thread_current() == context)
        thread_self()->depth--;
    return CUDA_SUCCESS;
}

/* A primary context has counted uses of its own (primary.c). */
static CUresult attach(CUcontext *out, unsigned flags)
{
    CUcontext context = thread_current();
    if (out == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = context_usable(context);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (context->primary || context->parent != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    context->uses++;
    *out = context;
    return CUDA_SUCCESS;
}

/* The context has to be current (so documented). The last use ends it. */
static CUresult detach(CUcontext context)
{
    if (context == NULL || context != thread_current() || context->primary ||
        context->parent != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return --context->uses > 0 ? CUDA_SUCCESS : destroy(context);
}

static CUresult synchronize(void)
{
    CUcontext context = thread_current();
    CUresult rc = context_usable(context);
    if (rc == CUDA_SUCCESS)
        rc = capture_context_unsafe(context, true);
    return rc == CUDA_SUCCESS ? context_wait(context) : rc;
}

static CUresult get_device(CUdevice *out)
{
    CUcontext context = thread_current();
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = context->device;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUcontext context, unsigned long long *out)
{
    if (context == NULL)
        context = thread_current();
    if (context == NULL || !context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = context->id;
    return CUDA_SUCCESS;
}

static CUresult get_version(CUcontext context, unsigned *out)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL)
        context = thread_current();
    if (context == NULL || !context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = 3020;
    return CUDA_SUCCESS;
}

static CUresult get_limit(size_t *out, CUlimit limit)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit >= LIMITS_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *out = thread_current()->limits[limit];
    return CUDA_SUCCESS;
}

static CUresult set_limit(CUlimit limit, size_t value)
{
    CUcontext context = thread_current();
    if ((unsigned)limit >= LIMITS_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    /* The heap of kernels is device memory; what is there at first is part of the context's own. */
    size_t have = context->limits[limit];
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > have && !context_take(context, value - have))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

API(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device), create(out, flags, device))
API(cuCtxCreate_v4, (CUcontext * out, CUctxCreateParams *params, unsigned flags, CUdevice device),
    params != NULL && params->cigParams != NULL ? CUDA_ERROR_NOT_SUPPORTED
                                                : create(out, flags, device))
API(cuCtxDestroy_v2, (CUcontext context), destroy(context))
API(cuCtxAttach, (CUcontext * out, unsigned flags), attach(out, flags))
API(cuCtxDetach, (CUcontext context), detach(context))
API(cuCtxSynchronize, (void), synchronize())
API_UNLOCKED(cuCtxGetDevice, (CUdevice * out), get_device(out))
API_UNLOCKED(cuCtxGetId, (CUcontext context, unsigned long long *out), get_id(context, out))
API(cuCtxGetApiVersion, (CUcontext context, unsigned *out), get_version(context, out))
API(cuCtxGetLimit, (size_t * out, CUlimit limit), get_limit(out, limit))
API(cuCtxSetLimit, (CUlimit limit, size_t value), set_limit(limit, value))
