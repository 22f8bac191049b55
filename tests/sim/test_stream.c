/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams and events on the virtual clock. */
#include "tests/sim/fixture.h"

#include <pthread.h>
#include <time.h>

#define WORDS 1024

static void work_takes_virtual_time(void **state)
{
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    uint64_t start = simNow_ns();
    spin(on, 50 * MS);
    spin(on, 50 * MS);
    assert_true(simNow_ns() - start < MS); /* launching does not wait */
    assert_int_equal(simWorkPending(), 2);
    OK(cuStreamSynchronize(on));
    assert_in_range(simNow_ns() - start, 100 * MS, 101 * MS);
    assert_int_equal(simWorkPending(), 0);
}

static void streams_run_side_by_side(void **state)
{
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    uint64_t start = simNow_ns();
    spin(a, 50 * MS);
    spin(b, 50 * MS);
    OK(cuCtxSynchronize());
    assert_in_range(simNow_ns() - start, 50 * MS, 51 * MS);
}

static void effects_come_as_late_as_order_allows(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    uint32_t *seen;
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemAllocHost((void **)&seen, 4));
    OK(cuMemsetD32(at, 1, WORDS));
    OK(cuCtxSynchronize());
    late_fill(a, at, WORDS, 2, 10 * MS);
    OK(cuMemcpyDtoHAsync(seen, at, 4, b));
    OK(cuStreamSynchronize(b));
    assert_int_equal(*seen, 1);
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoH(seen, at, 4));
    assert_int_equal(*seen, 2);
    assert_int_equal(simHazardCount(), 1); /* the read was not ordered */
    simHazardReset();
    OK(cuMemFreeHost(seen));
}

static void legacy_stream_and_blocking_streams_wait_for_each_other(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4);
    CUstream streams[] = {stream(CU_STREAM_DEFAULT), CU_STREAM_PER_THREAD};
    for (int i = 0; i < 2; i++) {
        late_fill(NULL, at, WORDS, 1, 10 * MS);
        fill(streams[i], at, WORDS, 2);
        assert_int_equal(wrong(at, WORDS, 2), 0);
        late_fill(streams[i], at, WORDS, 3, 10 * MS);
        fill(NULL, at, WORDS, 4);
        assert_int_equal(wrong(at, WORDS, 4), 0);
    }
    OK(cuMemFree(at));
}

static void check_counts_differing_words(void **state)
{
    CUdeviceptr at = alloc(WORDS * 4), errors = alloc(4);
    OK(cuMemsetD32(at, 5, WORDS));
    OK(cuMemsetD32(at + 40, 6, 7));
    OK(cuMemsetD32(errors, 100, 1));
    late_check(NULL, at, WORDS, 5, errors, MS);
    assert_int_equal(wrong(errors, 1, 107), 0);
}

static void per_thread_stream_lives_with_its_context(void **state)
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

static void queries_let_time_pass(void **state)
{
    CUevent done = event();
    OK(cuEventQuery(done)); /* never recorded */
    spin(NULL, 2 * MS);
    OK(cuEventRecord(done, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(done));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    int polls = 0;
    while (cuEventQuery(done) == CUDA_ERROR_NOT_READY)
        polls++;
    assert_in_range(polls, 1000, 3000);
    OK(cuStreamQuery(NULL));
    OK(cuEventDestroy(done));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(done));
}

static void stream_handles_are_checked(void **state)
{
    CUstream made = stream(CU_STREAM_NON_BLOCKING);
    CUcontext owner, other;
    uint64_t ns = 1;
    OK(cuStreamGetCtx(made, &owner));
    assert_ptr_equal(owner, context);
    OK(cuStreamDestroy(made));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(made));
    OK(cuStreamCreateWithPriority(&made, 0, -100));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&made, 7));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
    /* A launch into another context's stream, an event of another context. */
    CUevent fence = event();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(fence, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuLaunchKernel(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    OK(cuEventDestroy(fence));
}

static void *set_later(void *flag)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A host that waits for a persistent kernel waits in real time until another thread sets the
 * flag. */
static void persistent_kernel_ends_when_its_flag_is_set(void **state)
{
    uint32_t *flag;
    pthread_t thread;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    *flag = 0;
    wait_flag(on, (CUdeviceptr)(uintptr_t)flag);
    for (int i = 0; i < 1000; i++)
        GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(on));
    spin(NULL, MS); /* other streams go on */
    OK(cuStreamSynchronize(NULL));
    assert_int_equal(pthread_create(&thread, NULL, set_later, flag), 0);
    OK(cuStreamSynchronize(on));
    pthread_join(thread, NULL);
    OK(cuMemFreeHost(flag));
}

static void a_hopeless_wait_is_reported(void **state)
{
    uint32_t *flag;
    CUcontext own;
    CUmodule module;
    CUfunction function;
    OK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    *flag = 0;
    OK(cuCtxCreate(&own, NULL, 0, 1));
    OK(cuModuleLoadData(&module,
                        ".version 6.3\n.target sm_75\n.entry wait_flag(.param .u64 p){ret;}"));
    OK(cuModuleGetFunction(&function, module, "wait_flag"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&flag}, NULL));
    GIVES(CUDA_ERROR_LAUNCH_TIMEOUT, cuCtxSynchronize());
    *flag = 1;
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(context));
    OK(cuMemFreeHost(flag));
}

static void a_full_queue_blocks_the_host(void **state)
{
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    uint64_t start = simNow_ns();
    for (int i = 0; i < 2000; i++)
        spin(on, 10000);
    assert_in_range(simNow_ns() - start, 9 * MS, 11 * MS);
    assert_in_range(simWorkPending(), 1000, 1024);
    OK(cuStreamSynchronize(on));
}

static void *work_alone(void *argument)
{
    uint32_t number = *(uint32_t *)argument;
    OK(cuCtxSetCurrent(context));
    CUstream on;
    CUevent done;
    CUdeviceptr keep = alloc(64 * KIB);
    OK(cuStreamCreate(&on, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&done, 0));
    for (uint32_t i = 0; i < 200; i++) {
        CUdeviceptr at;
        uint32_t seen[2];
        OK(cuMemAlloc(&at, (i % 7 + 1) * 300 * KIB));
        fill(on, at, WORDS, number + i);
        copy(on, keep, at, WORDS);
        OK(cuEventRecord(done, on));
        if (i % 3 == 0)
            OK(cuEventSynchronize(done));
        else
            while (cuEventQuery(done) == CUDA_ERROR_NOT_READY)
                ;
        OK(cuMemcpyDtoHAsync(seen, keep + WORDS * 4 - 8, 8, on));
        if (seen[0] != number + i || seen[1] != number + i)
            return argument;
        OK(cuMemFree(at));
    }
    OK(cuStreamDestroy(on));
    OK(cuEventDestroy(done));
    OK(cuMemFree(keep));
    return NULL;
}

static void threads_share_the_driver(void **state)
{
    pthread_t threads[8];
    uint32_t numbers[8];
    for (uint32_t i = 0; i < 8; i++) {
        numbers[i] = i * 1000;
        assert_int_equal(pthread_create(&threads[i], NULL, work_alone, &numbers[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        void *wrong_thread;
        pthread_join(threads[i], &wrong_thread);
        assert_null(wrong_thread);
    }
    assert_int_equal(simHazardCount(), 0);
}

static void attributes_of_streams_are_checked(void **state)
{
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    CUstreamAttrValue value = {.memSyncDomainMap = {.default_ = 3, .remote = 2}};
    OK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    value.memSyncDomainMap.default_ = 4;
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    OK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &value));
    OK(cuStreamCopyAttributes(b, a));
    OK(cuStreamDestroy(b));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamCopyAttributes(b, a));
}

int main(void)
{
    setenv("SIM_HANG_S", "1", 1);
    const struct CMUnitTest tests[] = {
        TEST(work_takes_virtual_time),
        TEST(streams_run_side_by_side),
        TEST(effects_come_as_late_as_order_allows),
        TEST(legacy_stream_and_blocking_streams_wait_for_each_other),
        TEST(check_counts_differing_words),
        TEST(per_thread_stream_lives_with_its_context),
        TEST(queries_let_time_pass),
        TEST(stream_handles_are_checked),
        TEST(persistent_kernel_ends_when_its_flag_is_set),
        TEST(a_hopeless_wait_is_reported),
        TEST(a_full_queue_blocks_the_host),
        TEST(threads_share_the_driver),
        TEST(attributes_of_streams_are_checked),
    };
    return RUN(tests);
}
