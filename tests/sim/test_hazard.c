/* SPDX-License-Identifier: BSD-2-Clause */
/* The checker catches each kind of hazard and reports nothing for programs that order their
 * work. */
#include "tests/sim/fixture.h"

#define WORDS 1024

static void expect_hazards(uint64_t count)
{
    assert_int_equal(simHazardCount(), count);
    simHazardReset();
}

static void finish(void)
{
    OK(cuCtxSynchronize());
    simHazardReset();
}

static void unordered_writes_are_reported_once(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    fill(a, at, WORDS, 1);
    fill(b, at, WORDS, 2);
    expect_hazards(1);
    finish();
}

static void write_after_unordered_read_is_reported(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4), errors = alloc(4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    late_check(a, at, WORDS, 0, errors, MS);
    fill(b, at, WORDS, 2);
    expect_hazards(1);
    finish();
}

static void read_after_unordered_write_is_reported(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4), to = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    fill(a, at, WORDS, 1);
    copy(b, to, at, WORDS);
    expect_hazards(1);
    finish();
}

static void partial_overlap_is_reported(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    fill(a, at, WORDS / 2, 1);
    fill(b, at + WORDS * 2 - 4, 1, 2);
    expect_hazards(1);
    finish();
}

static void disjoint_writes_and_shared_reads_are_fine(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4), errors = alloc(4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    fill(a, at, WORDS / 2, 1);
    fill(b, at + WORDS * 2, WORDS / 2, 1);
    OK(cuCtxSynchronize());
    late_check(a, at, WORDS, 1, errors, MS);
    late_check(b, at, WORDS, 1, errors, MS); /* both add to errors, atomically */
    expect_hazards(0);
    finish();
}

/* The checker knows every way to order two streams. */
static void order_by_event(CUstream from, CUstream to)
{
    CUevent between = event();
    OK(cuEventRecord(between, from));
    OK(cuStreamWaitEvent(to, between, 0));
    OK(cuEventDestroy(between));
}
static void order_by_event_sync(CUstream from, CUstream to)
{
    CUevent between = event();
    OK(cuEventRecord(between, from));
    OK(cuEventSynchronize(between));
    OK(cuEventDestroy(between));
}
static void order_by_query(CUstream from, CUstream to)
{
    CUevent between = event();
    CUresult rc;
    OK(cuEventRecord(between, from));
    while ((rc = cuEventQuery(between)) == CUDA_ERROR_NOT_READY)
        ;
    OK(rc);
    OK(cuEventDestroy(between));
}
static void order_by_stream_sync(CUstream from, CUstream to)
{
    OK(cuStreamSynchronize(from));
}
static void order_by_stream_query(CUstream from, CUstream to)
{
    while (cuStreamQuery(from) == CUDA_ERROR_NOT_READY)
        ;
}
static void order_by_context_sync(CUstream from, CUstream to)
{
    OK(cuCtxSynchronize());
}
static void order_by_context_event(CUstream from, CUstream to)
{
    CUevent between = event();
    OK(cuCtxRecordEvent(NULL, between));
    OK(cuCtxWaitEvent(NULL, between));
    OK(cuEventDestroy(between));
}
static void order_by_third_stream(CUstream from, CUstream to)
{
    CUstream third = stream(CU_STREAM_NON_BLOCKING);
    order_by_event(from, third);
    order_by_event(third, to);
    OK(cuStreamDestroy(third));
}
static void order_by_free(CUstream from, CUstream to)
{
    OK(cuMemFree(alloc(4 * MIB)));
}

static void ordered_writes_are_fine(void **state)
{
    void (*const ways[])(CUstream, CUstream) = {
        order_by_event,         order_by_event_sync,   order_by_query,
        order_by_stream_sync,   order_by_stream_query, order_by_context_sync,
        order_by_context_event, order_by_third_stream, order_by_free,
    };
    CUdeviceptr at = alloc(WORDS * 4);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
        late_fill(a, at, WORDS, 1, MS);
        ways[i](a, b);
        fill(b, at, WORDS, 2);
        if (simHazardCount() != 0)
            fail_msg("way %zu", i);
        assert_int_equal(wrong(at, WORDS, 2), 0);
        OK(cuStreamDestroy(a));
        OK(cuStreamDestroy(b));
    }
}

static void legacy_stream_orders_blocking_streams_only(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_DEFAULT), b = stream(CU_STREAM_DEFAULT);
    CUstream free_running = stream(CU_STREAM_NON_BLOCKING);
    late_fill(a, at, WORDS, 1, MS);
    fill(NULL, at, WORDS, 2);
    fill(b, at, WORDS, 3);
    fill(CU_STREAM_LEGACY, at, WORDS, 4);
    fill(CU_STREAM_PER_THREAD, at, WORDS, 5);
    fill(NULL, at, WORDS, 6);
    expect_hazards(0);
    assert_int_equal(wrong(at, WORDS, 6), 0);
    late_fill(free_running, at, WORDS, 7, MS);
    fill(NULL, at, WORDS, 8);
    expect_hazards(1);
    finish();
    assert_int_equal(wrong(at, WORDS, 7), 0);
}

/* A destroyed stream's work still belongs to the context. */
static void context_event_covers_destroyed_streams(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    late_fill(a, at, WORDS, 1, MS);
    OK(cuStreamDestroy(a));
    order_by_context_event(NULL, NULL);
    fill(b, at, WORDS, 2);
    expect_hazards(0);
    assert_int_equal(wrong(at, WORDS, 2), 0);
}

static void one_ownership_is_the_programs_business(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    simOwnerBegin(at, WORDS * 4);
    fill(a, at, WORDS, 1);
    fill(b, at, WORDS, 2);
    fill(a, at, WORDS, 3);
    expect_hazards(0);
    simOwnerEnd(at);
    finish();
}

/* The work of the next owner has to come after all work of the last one, on any stream. */
static void change_of_owner_is_checked_against_all_of_the_last(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    simOwnerBegin(at, WORDS * 4);
    fill(a, at, WORDS, 1);
    fill(b, at, WORDS, 2);
    simOwnerEnd(at);
    simOwnerBegin(at, WORDS * 4);
    fill(b, at, WORDS, 3); /* behind b's write, but not behind a's */
    expect_hazards(1);
    simOwnerEnd(at);
    finish();
}

/* If one stream of the new owner comes after the old one, this does not order another stream. */
static void each_stream_of_the_new_owner_is_checked(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    simOwnerBegin(at, WORDS * 4);
    fill(a, at, WORDS, 1);
    simOwnerEnd(at);
    simOwnerBegin(at, WORDS * 4);
    fill(a, at, WORDS, 2);
    expect_hazards(0);
    fill(b, at, WORDS, 3);
    expect_hazards(1);
    simOwnerEnd(at);
    finish();
}

/* Long chains of owners without a host wait are checked exactly, at little cost. */
static void many_owners_in_stream_order_are_fine(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 5000; i++) {
        simOwnerBegin(at, WORDS * 4);
        fill(a, at, 16, 1);
        simOwnerEnd(at);
    }
    expect_hazards(0);
    simOwnerBegin(at, WORDS * 4);
    fill(b, at, 16, 2);
    simOwnerEnd(at);
    assert_true(simHazardCount() >= 1);
    finish();
}

static void unmapping_memory_in_use_is_reported(void **state)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = map(2 * MIB, &handle);
    CUstream a = stream(CU_STREAM_NON_BLOCKING);
    CUevent fence = event();
    fill(a, at, WORDS, 1);
    OK(cuEventRecord(fence, a));
    OK(cuEventSynchronize(fence));
    unmap(at, 2 * MIB, handle); /* known to be complete: fine */
    expect_hazards(0);
    at = map(2 * MIB, &handle);
    fill(a, at, WORDS, 1);
    simAdvance_ns(MS); /* complete, but the host has not looked */
    OK(cuMemUnmap(at, 2 * MIB));
    expect_hazards(1);
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, 2 * MIB));
    finish();
}

static void freeing_memory_that_a_peer_uses_is_reported(void **state)
{
    CUcontext other;
    CUdeviceptr at = alloc(2 * MIB), from;
    CUstream on_other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    OK(cuCtxEnablePeerAccess(context, 0));
    OK(cuMemAlloc(&from, 2 * MIB));
    OK(cuStreamCreate(&on_other, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyDtoDAsync(at, from, 2 * MIB, on_other));
    OK(cuCtxPopCurrent(NULL));
    OK(cuMemFree(at)); /* waits for device 0 only, as measured */
    expect_hazards(1);
    OK(cuDevicePrimaryCtxRelease(1));
}

static void async_pool_orders_its_own_reuse(void **state)
{
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 20; i++) {
        CUdeviceptr at;
        CUstream on = i % 2 ? a : b;
        OK(cuMemAllocAsync(&at, 64 * KIB, on));
        late_fill(on, at, 16 * KIB, 1, MS);
        OK(cuMemFreeAsync(at, on));
        simAdvance_ns(MS / 2);
    }
    expect_hazards(0);
    finish();
}

static void early_fill(CUstream on, CUdeviceptr at, int allowed)
{
    uint64_t words = WORDS;
    uint32_t value = 9;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.programmaticStreamSerializationAllowed = allowed}};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, on, &attribute, 1};
    OK(cuLaunchKernelEx(&config, kernel("fill"), (void *[]){&at, &words, &value}, NULL));
}

static void early_launches_overlap_the_kernels_before_them(void **state)
{
    CUdeviceptr old = alloc(WORDS * 4), at = alloc(WORDS * 4);
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUevent e = event();
    fill(s, old, WORDS, 1);
    fill(s, at, WORDS, 1);
    early_fill(s, at, 0);
    early_fill(s, old, 1);
    expect_hazards(0); /* two launches lie between */
    early_fill(s, at, 1);
    expect_hazards(1);
    early_fill(s, old, 1);
    expect_hazards(1);
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(s, e, 0));
    spin(s, MS);
    early_fill(s, old, 1);
    expect_hazards(0);
    early_fill(s, old, 1);
    expect_hazards(1);
    OK(cuCtxRecordEvent(NULL, e));
    OK(cuCtxWaitEvent(NULL, e));
    early_fill(s, at, 1);
    early_fill(s, old, 1);
    expect_hazards(0);
    OK(cuMemsetD8Async(at + WORDS, 0, 4, s));
    early_fill(s, at, 1);
    expect_hazards(0);
    early_fill(s, at, 1);
    expect_hazards(1);
    fill(s, at, WORDS, 2); /* behind both */
    expect_hazards(0);
    finish();
    early_fill(s, at, 1); /* the host has seen it all */
    expect_hazards(0);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unordered_writes_are_reported_once),
        TEST(write_after_unordered_read_is_reported),
        TEST(read_after_unordered_write_is_reported),
        TEST(partial_overlap_is_reported),
        TEST(disjoint_writes_and_shared_reads_are_fine),
        TEST(ordered_writes_are_fine),
        TEST(legacy_stream_orders_blocking_streams_only),
        TEST(context_event_covers_destroyed_streams),
        TEST(one_ownership_is_the_programs_business),
        TEST(change_of_owner_is_checked_against_all_of_the_last),
        TEST(each_stream_of_the_new_owner_is_checked),
        TEST(many_owners_in_stream_order_are_fine),
        TEST(unmapping_memory_in_use_is_reported),
        TEST(freeing_memory_that_a_peer_uses_is_reported),
        TEST(async_pool_orders_its_own_reuse),
        TEST(early_launches_overlap_the_kernels_before_them),
    };
    return RUN(tests);
}
