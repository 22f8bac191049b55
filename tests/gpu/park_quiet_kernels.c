/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Kinds of park_quiet.h that are kernels: on streams of all sorts, and started by kernels.
 */
#include "tests/gpu/park_quiet.h"

static CUresult submit_kernel(struct lane *l, unsigned part, uint32_t v)
{
    return quiet_fill(l->stream, lane_part(l, part), lane_words(l), v);
}

static CUresult submit_legacy(struct lane *l, unsigned part, uint32_t v)
{
    return quiet_fill(CU_STREAM_LEGACY, lane_part(l, part), lane_words(l), v);
}

static CUresult submit_per_thread(struct lane *l, unsigned part, uint32_t v)
{
    return quiet_fill(CU_STREAM_PER_THREAD, lane_part(l, part), lane_words(l), v);
}

static CUresult submit_destroyed(struct lane *l, unsigned part, uint32_t v)
{
    CUstream stream;
    CUresult rc = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), end;

    if (rc)
        return rc;
    rc = quiet_fill(stream, lane_part(l, part), lane_words(l), v);
    end = driver.cuStreamDestroy_v2(stream);
    return rc ? rc : end;
}

static bool has_launch_ex(struct lane *l)
{
    (void)l;
    return call.cuLaunchKernelEx;
}

/* The second kernel may start before the first one has ended. */
static CUresult submit_early(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = lane_words(l), ns = LATE_NS;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 64,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = l->stream,
                             .attrs = &early,
                             .numAttrs = 1};
    CUresult rc = quiet_spin(l->stream);

    return rc ? rc
              : call.cuLaunchKernelEx(&config, kernel.fill_late, (void *[]){&at, &n_words, &v, &ns},
                                      NULL);
}

static bool has_wait_event(struct lane *l)
{
    (void)l;
    return call.cuStreamWaitEvent;
}

static CUresult submit_other_stream(struct lane *l, unsigned part, uint32_t v)
{
    CUevent event;
    CUresult rc = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    rc = rc ? rc : quiet_spin(l->other);
    rc = rc ? rc : driver.cuEventRecord(event, l->other);
    rc = rc ? rc : call.cuStreamWaitEvent(l->stream, event, 0);
    rc = rc ? rc : quiet_fill(l->stream, lane_part(l, part), lane_words(l), v);
    return rc ? rc : driver.cuEventDestroy_v2(event);
}

static bool prepare_green(struct lane *l)
{
    CUdevResource all, some;
    CUdevResourceDesc description;
    CUgreenCtx green;
    unsigned count = 1;

    return call.cuGreenCtxStreamCreate && kernel.fill_anywhere &&
           !call.cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) &&
           !call.cuDevSmResourceSplitByCount(&some, &count, &all, NULL, 0, 8) &&
           !call.cuDevResourceGenerateDesc(&description, &some, 1) &&
           !call.cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) &&
           !call.cuCtxFromGreenCtx(&l->green, green) &&
           !call.cuGreenCtxStreamCreate(&l->stream, green, CU_STREAM_NON_BLOCKING, 0);
}

static CUresult submit_green(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = lane_words(l), ns = LATE_NS;
    CUcontext popped;
    CUresult rc = call.cuCtxPushCurrent_v2(l->green), end;

    if (rc)
        return rc;
    rc = driver.cuLaunchKernel((CUfunction)kernel.fill_anywhere, 1, 1, 1, 64, 1, 1, 0, l->stream,
                               (void *[]){&at, &n_words, &v, &ns}, NULL);
    end = call.cuCtxPopCurrent_v2(&popped);
    return rc ? rc : end;
}

static bool has_cubin(struct lane *l)
{
    (void)l;
    return kernel.child_forget;
}

static CUresult child(CUfunction f, struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = lane_words(l), ns = LATE_NS;

    return driver.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                 (void *[]){&at, &n_words, &v, &ns}, NULL);
}

static CUresult submit_child_forget(struct lane *l, unsigned part, uint32_t v)
{
    return child(kernel.child_forget, l, part, v);
}

static CUresult submit_child_tail(struct lane *l, unsigned part, uint32_t v)
{
    return child(kernel.child_tail, l, part, v);
}

static CUresult submit_green_memset(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32Async(lane_part(l, part), v, lane_words(l), l->stream);
}

const struct kind kernel_kinds[] = {
    {"kernel", PART_SMALL, NULL, submit_kernel, false},
    {"kernel, legacy stream", PART_SMALL, NULL, submit_legacy, false},
    {"kernel, per-thread stream", PART_SMALL, NULL, submit_per_thread, false},
    {"kernel, stream destroyed", PART_SMALL, NULL, submit_destroyed, false},
    {"kernel, early launch", PART_SMALL, has_launch_ex, submit_early, false},
    {"kernel behind another stream", PART_SMALL, has_wait_event, submit_other_stream, false},
    {"kernel, green context", PART_SMALL, prepare_green, submit_green, false},
    {"kernel started by a kernel", PART_SMALL, has_cubin, submit_child_forget, false},
    {"kernel in a kernel's tail", PART_SMALL, has_cubin, submit_child_tail, false},
    {"memset, green context", PART_SMALL, prepare_green, submit_green_memset, false},
    {NULL, 0, NULL, NULL, false},
};
