/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams and events on the virtual clock. */
#include "tests/sim/fixture.h"

#include <time.h>

#define WORDS 1024

TEST(work_takes_virtual_time)
{
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    uint64_t start = simNow_ns();
    spin(a, 50 * MS);
    spin(a, 50 * MS);
    spin(b, 99 * MS);                      /* side by side */
    assert_true(simNow_ns() - start < MS); /* launching does not wait */
    assert_int_equal(simWorkPending(), 3);
    OK(cuCtxSynchronize());
    assert_in_range(simNow_ns() - start, 100 * MS, 101 * MS);
    assert_int_equal(simWorkPending(), 0);
    for (unsigned i = 1; i <= 16; i++)
        spin(stream(CU_STREAM_NON_BLOCKING), i * 7 % 17 * MS);
    for (unsigned left = 16; left > 0; left--) {
        assert_int_equal(simWorkPending(), left);
        simAdvance_ns(MS);
    }
    /* A full queue blocks the host. */
    start = simNow_ns();
    for (int i = 0; i < 2000; i++)
        spin(a, 10000);
    assert_in_range(simNow_ns() - start, 9 * MS, 11 * MS);
    assert_in_range(simWorkPending(), 1000, 1024);
    OK(cuStreamSynchronize(a));
}

TEST(effects_come_as_late_as_order_allows)
{
    CUdeviceptr at = alloc(WORDS * 4), errors = alloc(4);
    uint32_t *seen;
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemAllocHost((void **)&seen, 4));
    OK(cuMemsetD32(at, 1, WORDS));
    OK(cuCtxSynchronize());
    late_fill(a, at, WORDS, 2, 10 * MS);
    OK(cuMemcpyDtoHAsync(seen, at, 4, b));
    OK(cuStreamSynchronize(b));
    assert_int_equal(*seen, 1);
    assert_int_equal(wrong(at, WORDS, 2), 0);
    assert_int_equal(simHazardCount(), 1); /* the read was not ordered */
    simHazardReset();
    /* A check adds the number of words that differ. */
    OK(cuMemsetD32(at + 40, 6, 7));
    OK(cuMemsetD32(errors, 100, 1));
    late_check(NULL, at, WORDS, 2, errors, MS);
    assert_int_equal(wrong(errors, 1, 107), 0);
    OK(cuMemFreeHost(seen));
}

TEST(per_thread_stream_lives_with_its_context)
{
    CUcontext other;
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&other, 1));
        OK(cuCtxPushCurrent(other));
        for (int j = 0; j < 3 + i; j++)
            OK(cuMemsetD8Async(alloc(4 * MIB), 1, 4 * MIB, stream(CU_STREAM_NON_BLOCKING)));
        OK(cuStreamQuery(CU_STREAM_PER_THREAD)); /* none of these, in either life */
        OK(cuCtxPopCurrent(NULL));
        OK(cuDevicePrimaryCtxReset(1));
    }
}

TEST(queries_let_time_pass)
{
    CUevent done = event();
    int polls = 0;
    OK(cuEventQuery(done)); /* never recorded */
    spin(NULL, 2 * MS);
    OK(cuEventRecord(done, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    while (cuEventQuery(done) == CUDA_ERROR_NOT_READY)
        polls++;
    assert_in_range(polls, 1000, 3000);
    OK(cuStreamQuery(NULL));
    OK(cuEventDestroy(done));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(done));
}

TEST(handles_and_attributes_are_checked)
{
    CUstream made = stream(CU_STREAM_NON_BLOCKING), a = stream(CU_STREAM_NON_BLOCKING);
    CUstreamAttrValue value = {.memSyncDomainMap = {.default_ = 3, .remote = 2}};
    CUcontext owner, other;
    CUevent fence = event();
    OK(cuStreamGetCtx(made, &owner));
    assert_ptr_equal(owner, context);
    OK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    value.memSyncDomainMap.default_ = 4;
    BAD(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    BAD(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &value));
    OK(cuStreamCopyAttributes(made, a));
    OK(cuStreamDestroy(made));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(made));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamCopyAttributes(made, a));
    BAD(cuStreamCreate(&made, 7));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
    /* An event is its context's. */
    OK(cuCtxCreate(&other, NULL, 0, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(fence, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(other, fence));
    OK(cuCtxDestroy(other));
    OK(cuEventDestroy(fence));
}

static void *set_later(void *flag)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A host that waits for a persistent kernel waits in real time until another thread sets the flag,
 * but not for ever. */
TEST(persistent_kernel_ends_when_its_flag_is_set)
{
    uint32_t *flag;
    CUcontext own;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    *flag = 0;
    wait_flag(on, (CUdeviceptr)(uintptr_t)flag);
    for (int i = 0; i < 1000; i++)
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(on));
    spin(NULL, MS); /* other streams go on */
    OK(cuStreamSynchronize(NULL));
    pthread_t thread = started(set_later, flag);
    OK(cuStreamSynchronize(on));
    pthread_join(thread, NULL);
    *flag = 0;
    OK(cuCtxCreate(&own, NULL, 0, 1));
    launch_here("wait_flag", (void *[]){&flag});
    GIVES(CUDA_ERROR_LAUNCH_TIMEOUT, cuCtxSynchronize());
    *flag = 1;
    OK(cuCtxDestroy(own));
    OK(cuMemFreeHost(flag));
}

TEST(a_stream_waits_for_a_value)
{
    uint32_t *word;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemHostAlloc((void **)&word, 4, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)word;
    *word = 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(on, at, 5, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWaitValue32(on, at, 5, CU_STREAM_WAIT_VALUE_GEQ));
    for (int i = 0; i < 100; i++)
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(on));
    *word = 6;
    OK(cuStreamSynchronize(on));
    OK(cuMemFreeHost(word));
}

static void *query_info(void *unused)
{
    size_t free_bytes, total_bytes;
    OK(cuCtxSetCurrent(context));
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    return NULL;
}

TEST(a_call_is_held_and_others_go_on)
{
    assert_int_equal(simHold("cuNoSuchFunction"), -1);
    assert_int_equal(simHold("cuMemGetInfo_v2"), 0);
    pthread_t thread = started(query_info, NULL);
    while (!simHeld())
        ;
    OK(cuCtxSynchronize());
    assert_int_equal(simHeld(), 1);
    simLetGo("cuMemGetInfo_v2");
    pthread_join(thread, NULL);
    assert_int_equal(simHeld(), 0);
}

int main(void)
{
    setenv("SIM_HANG_S", "1", 1);
    return play_tests(fixture_start, NULL);
}
