/* SPDX-License-Identifier: BSD-2-Clause */
/* Green contexts: streams on a part of the device. Events and waits of the primary context cover
 * them. */
#include "tests/sim/fixture.h"

#define WORDS 1024

static CUgreenCtx green;
static CUcontext converted;

static int set_up(void **state)
{
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned groups = 1;
    fixture_start(state);
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    assert_int_equal(all.sm.smCount, 132);
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 10));
    assert_int_equal(part.sm.smCount, 16);
    OK(cuDevResourceGenerateDesc(&description, &part, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, description, 0, 0));
    OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&converted, green));
    return 0;
}

static CUstream green_stream(void)
{
    CUstream made;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&made, green, 0, 0));
    OK(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0));
    return made;
}

/* A launch on a green stream, with the green context current. */
static void green_late_fill(CUstream on, CUdeviceptr at, uint32_t value)
{
    OK(cuCtxPushCurrent(converted));
    late_fill(on, at, WORDS, value, 20 * MS);
    OK(cuCtxPopCurrent(NULL));
}

static void primary_events_cover_green_work(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream on = green_stream();
    CUevent fence = event();
    green_late_fill(on, at, 1);
    OK(cuCtxRecordEvent(context, fence));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(fence));
    OK(cuCtxWaitEvent(context, fence));
    fill(stream(CU_STREAM_NON_BLOCKING), at, WORDS, 2);
    assert_int_equal(wrong(at, WORDS, 2), 0);
    assert_int_equal(simHazardCount(), 0);
    OK(cuMemFree(at));
}

static void primary_waits_hold_green_work(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream on = green_stream();
    CUevent fence = event();
    late_fill(stream(CU_STREAM_NON_BLOCKING), at, WORDS, 1, 50 * MS);
    OK(cuCtxRecordEvent(context, fence));
    OK(cuCtxWaitEvent(context, fence));
    green_late_fill(on, at, 2);
    assert_int_equal(wrong(at, WORDS, 2), 0);
    assert_int_equal(simHazardCount(), 0);
    OK(cuMemFree(at));
}

static void green_events_cover_green_work_only(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4), other = alloc(WORDS * 4);
    CUstream on = green_stream();
    CUevent fence;
    OK(cuCtxPushCurrent(converted));
    OK(cuEventCreate(&fence, 0));
    OK(cuCtxPopCurrent(NULL));
    late_fill(stream(CU_STREAM_NON_BLOCKING), other, WORDS, 1, 500 * MS);
    green_late_fill(on, at, 1);
    OK(cuCtxRecordEvent(converted, fence));
    OK(cuEventSynchronize(fence));
    assert_int_equal(simWorkPending(), 1);
    OK(cuEventDestroy(fence));
    OK(cuCtxSynchronize());
    OK(cuMemFree(at));
    OK(cuMemFree(other));
}

static void memory_belongs_to_the_primary_context(void **state)
{
    CUdeviceptr at;
    CUcontext owner;
    CUgreenCtx seen;
    CUstream on = green_stream();
    OK(cuCtxPushCurrent(converted));
    at = alloc(4 * MIB);
    OK(cuCtxPopCurrent(NULL));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    assert_ptr_equal(owner, context);
    OK(cuStreamGetCtx(on, &owner));
    assert_ptr_equal(owner, converted);
    OK(cuStreamGetCtx_v2(on, &owner, &seen));
    assert_ptr_equal(owner, context);
    assert_ptr_equal(seen, green);
    OK(cuStreamGetCtx_v2(NULL, &owner, &seen));
    assert_ptr_equal(owner, context);
    assert_null(seen);
    OK(cuMemFree(at));
}

static void captures_on_green_streams_are_not_the_primarys(void **state)
{
    CUstream on = green_stream();
    CUgraph graph;
    CUevent fence = event();
    OK(cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuCtxRecordEvent(context, fence));
    OK(cuStreamEndCapture(on, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy(fence));
}

static void green_streams_are_for_the_primary_context_too(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    late_fill(green_stream(), at, WORDS, 3, MS); /* the primary context is current */
    OK(cuCtxSynchronize());
    assert_int_equal(wrong(at, WORDS, 3), 0);
    OK(cuMemFree(at));
}

static void a_green_context_has_no_per_thread_stream(void **state)
{
    CUgreenCtx seen = NULL;
    OK(cuCtxPushCurrent(converted));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(CU_STREAM_PER_THREAD));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamGetGreenCtx(CU_STREAM_PER_THREAD, &seen));
    OK(cuStreamGetGreenCtx(CU_STREAM_LEGACY, &seen));
    assert_ptr_equal(seen, green);
    OK(cuCtxPopCurrent(NULL));
}

static void destruction_leaves_the_primary_context(void **state)
{
    CUstream on = green_stream();
    OK(cuGreenCtxDestroy(green));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(green));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(on));
    OK(cuMemFree(alloc(1)));
    OK(cuCtxSynchronize());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(primary_events_cover_green_work),
        TEST(primary_waits_hold_green_work),
        TEST(green_events_cover_green_work_only),
        TEST(memory_belongs_to_the_primary_context),
        TEST(captures_on_green_streams_are_not_the_primarys),
        TEST(green_streams_are_for_the_primary_context_too),
        TEST(a_green_context_has_no_per_thread_stream),
        TEST(destruction_leaves_the_primary_context),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
