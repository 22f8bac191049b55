/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams and events on the virtual clock, host functions, waits for values. */
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
    unsigned long long first, again, second;
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&other, 1));
        OK(cuCtxPushCurrent(other));
        OK(cuStreamGetId(CU_STREAM_PER_THREAD, i == 0 ? &first : &second));
        OK(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
        assert_true(again == (i == 0 ? first : second));
        OK(cuCtxPopCurrent(NULL));
        OK(cuDevicePrimaryCtxReset(1));
    }
    assert_true(first != second);
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

static void events_measure_time(void **state)
{
    CUevent from, to;
    float ms;
    OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, from, to));
    OK(cuEventRecord(from, NULL));
    spin(NULL, 30 * MS);
    OK(cuEventRecord(to, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, from, to));
    OK(cuEventSynchronize(to));
    OK(cuEventElapsedTime(&ms, from, to));
    assert_true(ms > 29.9 && ms < 30.1);
    OK(cuEventDestroy(from));
    OK(cuEventDestroy(to));
}

static void stream_handles_are_checked(void **state)
{
    CUstream made = stream(CU_STREAM_NON_BLOCKING);
    CUcontext owner, other;
    unsigned flags;
    int priority, least, greatest;
    unsigned long long a, b;
    OK(cuStreamGetCtx(made, &owner));
    assert_ptr_equal(owner, context);
    OK(cuStreamGetFlags(made, &flags));
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    OK(cuStreamGetId(made, &a));
    OK(cuStreamGetId(NULL, &b));
    assert_true(a != b);
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    assert_true(greatest < least);
    OK(cuStreamDestroy(made));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(made));
    OK(cuStreamCreateWithPriority(&made, 0, -100));
    OK(cuStreamGetPriority(made, &priority));
    assert_int_equal(priority, greatest);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&made, 7));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
    /* A launch into another context's stream, an event of another context. */
    CUevent fence = event();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(fence, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuLaunchKernel(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a}, NULL));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    OK(cuEventDestroy(fence));
}

static _Atomic int called;
static CUresult inside;

static void CUDA_CB host_function(void *data)
{
    CUdeviceptr at;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    inside = cuMemAlloc(&at, 1);
    called += *(int *)data;
}

static void CUDA_CB callback(CUstream on, CUresult status, void *data)
{
    called += status == CUDA_SUCCESS ? *(int *)data : 1000;
}

static void host_functions_run_in_stream_order(void **state)
{
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    int one = 1, ten = 10;
    called = 0;
    spin(on, MS);
    OK(cuLaunchHostFunc(on, host_function, &one));
    OK(cuStreamAddCallback(on, callback, &ten, 0));
    assert_int_equal(called, 0);
    OK(cuStreamSynchronize(on));
    assert_int_equal(called, 11);
    assert_int_equal(inside, CUDA_ERROR_NOT_PERMITTED);
}

/* A program may wait for its host function without any CUDA call. */
static void host_functions_need_no_call_to_come(void **state)
{
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    int one = 1;
    called = 0;
    spin(on, 20 * MS);
    OK(cuLaunchHostFunc(on, host_function, &one));
    for (int i = 0; i < 5000 && called == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(called, 1);
    OK(cuStreamSynchronize(on));
}

static void stream_waits_for_a_value(void **state)
{
    CUdeviceptr word = alloc(4), at = alloc(WORDS * 4);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemsetD32(word, 0, 1));
    OK(cuMemsetD32(at, 1, WORDS));
    OK(cuCtxSynchronize());
    OK(cuStreamWaitValue32(a, word, 5, CU_STREAM_WAIT_VALUE_GEQ));
    fill(a, at, WORDS, 2);
    spin(b, MS);
    OK(cuStreamSynchronize(b));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    OK(cuStreamWriteValue32(b, word, 6, 0));
    OK(cuStreamSynchronize(a));
    assert_int_equal(wrong(at, WORDS, 2), 0);
}

static void *set_later(void *flag)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A host that waits for a persistent kernel waits in real time, until another thread lets it go. */
static void persistent_kernel_ends_when_its_flag_is_set(void **state)
{
    uint32_t *flag;
    CUdeviceptr device;
    pthread_t thread;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&device, flag, 0));
    *flag = 0;
    wait_flag(on, device);
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

static void streams_have_the_attributes_that_were_seen(void **state)
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
    OK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
    assert_int_equal(value.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
    OK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    assert_int_equal(value.memSyncDomainMap.default_, 3);
    assert_int_equal(value.memSyncDomainMap.remote, 2);
    OK(cuStreamGetAttribute(NULL, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    assert_int_equal(value.memSyncDomainMap.default_, 0);
    assert_int_equal(value.memSyncDomainMap.remote, 1);
}

static void costs_can_be_set(void **state)
{
    CUevent fence = event();
    uint64_t start = simNow_ns();
    assert_int_equal(simSetCost_ns("cuEventRecord", 777), 0);
    OK(cuEventRecord(fence, NULL));
    assert_int_equal(simNow_ns() - start, 777);
    assert_int_equal(simSetCost_ns("cuEventRecord", 0), 0);
    assert_int_equal(simSetCost_ns("nothing", 1), -1);
    OK(cuEventDestroy(fence));
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
        TEST(events_measure_time),
        TEST(stream_handles_are_checked),
        TEST(host_functions_run_in_stream_order),
        TEST(host_functions_need_no_call_to_come),
        TEST(stream_waits_for_a_value),
        TEST(persistent_kernel_ends_when_its_flag_is_set),
        TEST(a_hopeless_wait_is_reported),
        TEST(a_full_queue_blocks_the_host),
        TEST(threads_share_the_driver),
        TEST(streams_have_the_attributes_that_were_seen),
        TEST(costs_can_be_set),
    };
    return RUN(tests);
}
