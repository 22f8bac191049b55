/* SPDX-License-Identifier: BSD-2-Clause */
/* Green contexts. A green context is a part of the primary context's processors with streams of its
 * own. Here it is a context whose parent is the primary one. Events and waits of the parent cover
 * it, and memory that is allocated while it is current belongs to the parent. Processors are
 * counted, not simulated. */
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/event.h"
#include "tests/sim/handles.h"
#include "tests/sim/primary.h"

#define MAGIC 0x4752454eu
#define PROCESSORS 132
#define SMALLEST_PART 8

struct CUgreenCtx_st {
    uint32_t magic;
    CUcontext context; /* what cuCtxFromGreenCtx gives */
    CUdevResource resource;
};

struct CUdevResourceDesc_st {
    uint32_t magic;
    CUdevResource resource;
};

static struct handles greens = {.size = sizeof(struct CUgreenCtx_st)};
static struct handles descriptions = {.size = sizeof(struct CUdevResourceDesc_st)};

static CUresult whole(CUdevResource *out)
{
    memset(out, 0, sizeof *out);
    out->type = CU_DEV_RESOURCE_TYPE_SM;
    out->sm.smCount = PROCESSORS;
    out->sm.minSmPartitionSize = SMALLEST_PART;
    out->sm.smCoscheduledAlignment = SMALLEST_PART;
    return CUDA_SUCCESS;
}

/* A query of the count alone, and of what remains, is not simulated. */
static CUresult split(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                      const CUdevResource *remaining, unsigned least)
{
    REFUSE(result == NULL || remaining != NULL, NOT_SUPPORTED);
    REFUSE(groups == NULL || input == NULL || input->type != CU_DEV_RESOURCE_TYPE_SM || least == 0,
           INVALID_VALUE);
    unsigned part = (unsigned)round_up(least, SMALLEST_PART), most = input->sm.smCount / part;
    REFUSE(most == 0, INVALID_RESOURCE_CONFIGURATION);
    *groups = *groups < most ? *groups : most;
    for (unsigned i = 0; i < *groups; i++) {
        result[i] = *input;
        result[i].sm.smCount = part;
    }
    return CUDA_SUCCESS;
}

static CUresult describe(CUdevResourceDesc *out, CUdevResource *resources, unsigned count)
{
    if (out == NULL || resources == NULL || count != 1 ||
        resources->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    CUdevResourceDesc description = handles_take(&descriptions);
    *description = (struct CUdevResourceDesc_st){MAGIC, *resources};
    *out = description;
    return CUDA_SUCCESS;
}

static CUresult create(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device,
                       unsigned flags)
{
    CUcontext parent;
    if (out == NULL || description == NULL || description->magic != MAGIC ||
        flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(primary_retain(&parent, device));
    CUgreenCtx green = handles_take(&greens);
    *green = (struct CUgreenCtx_st){MAGIC, context_create(device), description->resource};
    if (green->context == NULL) {
        green->magic = 0;
        handles_give(&greens, green);
        primary_release(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->context->parent = parent;
    green->context->green = green;
    *out = green;
    return CUDA_SUCCESS;
}

static CUresult check(CUgreenCtx green)
{
    REFUSE((uintptr_t)green < 4096 || green->magic != MAGIC, INVALID_CONTEXT);
    return context_usable(green->context);
}

static CUresult destroy(CUgreenCtx green)
{
    TRY(check(green));
    context_destroy(green->context);
    primary_release(green->context->device);
    green->magic = 0;
    handles_give(&greens, green);
    return CUDA_SUCCESS;
}

static CUresult convert(CUcontext *out, CUgreenCtx green)
{
    TRY(check(green));
    REFUSE(out == NULL, INVALID_VALUE);
    return GIVE(out, green->context);
}

static CUresult create_stream(CUstream *out, CUgreenCtx green, unsigned flags)
{
    TRY(check(green));
    REFUSE(out == NULL || flags != CU_STREAM_NON_BLOCKING, INVALID_VALUE);
    REFUSE(!context_take(green->context, config.object_bytes), OUT_OF_MEMORY);
    *out = stream_create(green->context, STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}

API(cuDeviceGetDevResource, (CUdevice device, CUdevResource *out, CUdevResourceType type),
    NEEDS_DEVICE(device) NEEDS(out != NULL && type == CU_DEV_RESOURCE_TYPE_SM, INVALID_VALUE)
        whole(out))
API(cuDevSmResourceSplitByCount,
    (CUdevResource * result, unsigned *groups, const CUdevResource *input, CUdevResource *remaining,
     unsigned flags, unsigned least),
    split(result, groups, input, remaining, least))
API(cuDevResourceGenerateDesc, (CUdevResourceDesc * out, CUdevResource *resources, unsigned count),
    describe(out, resources, count))
API(cuGreenCtxCreate,
    (CUgreenCtx * out, CUdevResourceDesc description, CUdevice device, unsigned flags),
    create(out, description, device, flags))
API(cuGreenCtxDestroy, (CUgreenCtx green), destroy(green))
API(cuCtxFromGreenCtx, (CUcontext * out, CUgreenCtx green), convert(out, green))
API(cuGreenCtxStreamCreate, (CUstream * out, CUgreenCtx green, unsigned flags, int priority),
    create_stream(out, green, flags))
API_STREAM_VARIANT(cuStreamGetGreenCtx, NULL, (CUstream stream, CUgreenCtx *out), stream,
                   NEEDS(out != NULL, INVALID_VALUE) GIVE(out, on->context->green))
