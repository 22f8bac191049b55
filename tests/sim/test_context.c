/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts: the stack, ends and lives, errors that stick, peers, fork, faults; and green contexts,
 * which events and waits of the primary context cover. */
#include "tests/sim/fixture.h"

#include <time.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* of cuCtxAttach and cuCtxDetach */

#define WORDS 1024

static CUgreenCtx green;
static CUcontext converted;

static CUcontext current(void)
{
    CUcontext now;
    OK(cuCtxGetCurrent(&now));
    return now;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

TEST(contexts_stack_and_are_several)
{
    CUcontext a, b, now;
    unsigned long long id_a, id_b;
    CUdeviceptr at;
    CUdevice device;
    OK(cuCtxCreate(&a, NULL, 0, 1));
    OK(cuCtxCreate(&b, NULL, 0, 1));
    OK(cuCtxGetId(a, &id_a));
    OK(cuCtxGetId(b, &id_b));
    assert_true(id_a != id_b);
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    OK(cuCtxDestroy(b)); /* current: popped */
    assert_ptr_equal(current(), a);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxDestroy(a)); /* not current: stays on the stack, dead */
    OK(cuCtxPopCurrent(&now));
    assert_ptr_equal(now, context);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&at, 1));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(a));
    OK(cuCtxPushCurrent(a));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&at, 1));
    OK(cuCtxPopCurrent(NULL));
    OK(cuCtxPopCurrent(NULL));
    assert_ptr_equal(current(), context);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context)); /* primary */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234000));
}

TEST(attached_contexts_end_with_their_last_use)
{
    CUcontext own, same;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&same, 0)); /* primary */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(context));
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        OK(cuCtxCreate(&own, NULL, 0, 0));
        BAD(cuCtxAttach(&same, 1));
        OK(cuCtxAttach(&same, 0));
        assert_ptr_equal(same, own);
        if (destroyed) { /* destruction does not count */
            OK(cuCtxDestroy(own));
        } else {
            OK(cuCtxDetach(own));
            OK(cuCtxPushCurrent(context));
            GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(own)); /* not current */
            OK(cuCtxPopCurrent(NULL));
            OK(cuCtxDetach(own));
        }
        assert_ptr_equal(current(), context);
        GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(own));
    }
}

/* The driver recognises every stale handle, and a context that ended costs nothing. */
TEST(any_number_of_contexts_may_end)
{
    enum { CONTEXTS = 20000 };
    CUcontext first = NULL, own;
    uint64_t from_ns = cpu_ns(), half_ns = 0;
    for (int i = 0; i < CONTEXTS; i++) {
        OK(cuCtxCreate(&own, NULL, 0, 0));
        OK(cuCtxDestroy(own));
        first = first != NULL ? first : own;
        half_ns = i == CONTEXTS / 2 ? cpu_ns() : half_ns;
    }
    assert_true(cpu_ns() - half_ns < 2 * (half_ns - from_ns) + 100 * MS);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(first));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(own));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy((CUcontext)(void *)((char *)own + 8)));
}

static int active(void)
{
    unsigned flags;
    int is;
    OK(cuDevicePrimaryCtxGetState(1, &flags, &is));
    return is;
}

TEST(primary_context_lives_again)
{
    CUcontext first, second;
    unsigned long long id, new_id;
    assert_int_equal(active(), 0);
    OK(cuDevicePrimaryCtxRetain(&first, 1));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    assert_ptr_equal(first, second);
    OK(cuCtxGetId(first, &id));
    OK(cuDevicePrimaryCtxRelease(1));
    assert_int_equal(active(), 1);
    OK(cuDevicePrimaryCtxRelease(1));
    assert_int_equal(active(), 0);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(1));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxGetId(first, &id));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    assert_ptr_equal(first, second);
    OK(cuCtxGetId(second, &new_id));
    assert_true(new_id != id);
    OK(cuDevicePrimaryCtxReset(1));
    assert_int_equal(active(), 0);
    OK(cuDevicePrimaryCtxReset(1)); /* of an inactive one: nothing */
}

TEST(peers_need_to_be_enabled)
{
    CUcontext other;
    CUdeviceptr at = alloc(4096);
    uint64_t words = WORDS;
    uint32_t value = 3;
    for (int enabled = 1; enabled >= 0; enabled--) {
        OK(cuCtxCreate(&other, NULL, 0, 1));
        GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(other, 0));
        OK(cuCtxEnablePeerAccess(context, 0));
        GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context, 0));
        if (!enabled) {
            OK(cuCtxDisablePeerAccess(context));
            GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context));
        }
        launch_here("fill", (void *[]){&at, &words, &value});
        GIVES(enabled ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        OK(cuCtxDestroy(other));
        if (enabled)
            assert_int_equal(wrong(at, WORDS, 3), 0);
    }
    OK(cuMemFree(at));
}

/* As natively, the child of a process that has initialised CUDA cannot use it. */
TEST(a_forked_child_is_not_initialised)
{
    int version;
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr at;
        CUcontext now;
        _exit(cuMemAlloc(&at, 1) != CUDA_ERROR_NOT_INITIALIZED ||
              cuInit(0) != CUDA_ERROR_NOT_INITIALIZED ||
              cuCtxGetCurrent(&now) != CUDA_ERROR_NOT_INITIALIZED ||
              cuDriverGetVersion(&version) != CUDA_SUCCESS);
    }
    assert_int_equal(child_status(child), 0);
    OK(cuMemFree(alloc(MIB)));
}

TEST(faults_strike_as_told)
{
    static const struct {
        const char *spec, *calls; /* x: the call fails */
    } plans[] = {{"cuMemAlloc_v2:2:2", ".x."}, {"cuMemAlloc_v2:2+:2", ".xx"}};
    static const char *const bad[] = {"noSuchFunction:1:2", "cuMemAlloc_v2:1", "cuMemAlloc_v2:x:1"};
    CUdeviceptr at;
    CUcontext own;
    int failed = 0;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(simFailSpec(plans[i].spec), 0);
        for (const char *call = plans[i].calls; *call != '\0'; call++) {
            GIVES(*call == 'x' ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, cuMemAlloc(&at, 1));
            OK(cuMemFree(*call == 'x' ? 0 : at));
        }
        simFailClear("cuMemAlloc_v2");
    }
    assert_int_equal(simFailSpec("cuMemAlloc_v2:p0.5:2"), 0);
    uint64_t before = simCallCount("cuMemAlloc_v2");
    for (int i = 0; i < 1000; i++) {
        CUresult rc = cuMemAlloc(&at, 1);
        OK(cuMemFree(rc == CUDA_SUCCESS ? at : 0));
        failed += rc != CUDA_SUCCESS;
    }
    assert_in_range(failed, 400, 600);
    assert_int_equal(simCallCount("cuMemAlloc_v2") - before, 1000);
    assert_true(simCallCount("cuMemAlloc_v9") == UINT64_MAX);
    simFailClear(NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(simFailSpec(bad[i]), -1);
    OK(cuCtxCreate(&own, NULL, 0, 0));
    assert_int_equal(simFailSpec("cuCtxSynchronize:1:700!"), 0);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&at, 1)); /* it sticks */
    OK(cuCtxDestroy(own));
}

static CUstream green_stream(void)
{
    CUstream made;
    BAD(cuGreenCtxStreamCreate(&made, green, 0, 0));
    OK(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0));
    return made;
}

/* Work on a green stream and on one of the primary context, the later of them behind an event of
 * the primary context. */
TEST(primary_events_order_green_work)
{
    for (int green_first = 0; green_first < 2; green_first++) {
        CUdeviceptr at = alloc(WORDS * 4);
        CUstream streams[] = {stream(CU_STREAM_NON_BLOCKING), green_stream()};
        CUevent fence = event();
        late_fill(streams[green_first], at, WORDS, 1, 20 * MS);
        OK(cuCtxRecordEvent(context, fence));
        GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(fence));
        OK(cuCtxWaitEvent(context, fence));
        OK(cuCtxPushCurrent(converted)); /* streams of both are for both */
        late_fill(streams[!green_first], at, WORDS, 2, MS);
        OK(cuCtxPopCurrent(NULL));
        assert_int_equal(wrong(at, WORDS, 2), 0);
        assert_int_equal(simHazardCount(), 0);
        OK(cuMemFree(at));
    }
}

TEST(green_events_cover_green_work_only)
{
    CUdeviceptr at = alloc(WORDS * 4), other = alloc(WORDS * 4);
    CUevent fence;
    OK(cuCtxPushCurrent(converted));
    OK(cuEventCreate(&fence, 0));
    OK(cuCtxPopCurrent(NULL));
    late_fill(stream(CU_STREAM_NON_BLOCKING), other, WORDS, 1, 500 * MS);
    late_fill(green_stream(), at, WORDS, 1, 20 * MS);
    OK(cuCtxRecordEvent(converted, fence));
    OK(cuEventSynchronize(fence));
    assert_int_equal(simWorkPending(), 1);
    OK(cuEventDestroy(fence));
    OK(cuMemFree(at));
    OK(cuMemFree(other));
}

TEST(green_contexts_are_parts_of_the_primary)
{
    CUcontext owner;
    CUgreenCtx seen = NULL;
    CUgraph graph;
    CUevent fence = event();
    CUstream on = green_stream();
    OK(cuCtxPushCurrent(converted));
    CUdeviceptr at = alloc(4 * MIB);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(CU_STREAM_PER_THREAD));
    OK(cuStreamGetGreenCtx(CU_STREAM_LEGACY, &seen));
    assert_ptr_equal(seen, green);
    OK(cuCtxPopCurrent(NULL));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    assert_ptr_equal(owner, context);
    OK(cuStreamGetCtx(on, &owner));
    assert_ptr_equal(owner, converted);
    OK(cuStreamGetCtx_v2(on, &owner, &seen));
    assert_ptr_equal(owner, context);
    assert_ptr_equal(seen, green);
    OK(cuStreamGetCtx_v2(NULL, &owner, &seen));
    assert_null(seen);
    /* A capture there forbids the primary context's wait, not its record. */
    OK(cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuCtxRecordEvent(context, fence));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxWaitEvent(context, fence));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(on, &graph));
    OK(cuMemFree(at));
    OK(cuGreenCtxDestroy(green));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(green));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(on));
    OK(cuCtxSynchronize());
}

static int set_up(void **state)
{
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned groups = 1;
    fixture_start(state);
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 10));
    assert_int_equal(part.sm.smCount, 16);
    OK(cuDevResourceGenerateDesc(&description, &part, 1));
    BAD(cuGreenCtxCreate(&green, description, 0, 0));
    OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&converted, green));
    return 0;
}

int main(void)
{
    CUdeviceptr at;
    if (cuMemAlloc(&at, 1) != CUDA_ERROR_NOT_INITIALIZED || cuInit(1) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    return play_tests(set_up, NULL);
}
