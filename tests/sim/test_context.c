/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices and contexts: the stack, lives of primary contexts, errors that stick, peers, threads,
 * fork. */
#include "tests/sim/fixture.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* of cuCtxAttach and cuCtxDetach */

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void devices_tell_what_they_are(void **state)
{
    int count, value, version;
    char name[64];
    size_t total;
    CUdevice device;
    OK(cuDriverGetVersion(&version));
    assert_int_equal(version, 13000);
    OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 2);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
    OK(cuDeviceGetName(name, sizeof name, 0));
    assert_true(strlen(name) > 0);
    OK(cuDeviceTotalMem(&total, 0));
    assert_int_equal(total, 16 * 1024 * MIB);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 1));
    assert_int_equal(value, 9);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0));
}

static void contexts_stack_and_are_several(void **state)
{
    CUcontext a, b, now;
    unsigned long long id_a, id_b;
    CUdevice device;
    OK(cuCtxCreate(&a, NULL, 0, 1));
    OK(cuCtxCreate(&b, NULL, 0, 1));
    OK(cuCtxGetId(a, &id_a));
    OK(cuCtxGetId(b, &id_b));
    assert_true(id_a != id_b);
    OK(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, b);
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    OK(cuCtxDestroy(b)); /* current: popped */
    OK(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, a);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxDestroy(a)); /* not current: stays on the stack, dead */
    OK(cuCtxPopCurrent(&now));
    assert_ptr_equal(now, context);
    CUdeviceptr at;
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&at, 1));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(a));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxPushCurrent(a));
    OK(cuCtxPopCurrent(&now));
    OK(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, context);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context)); /* primary */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234000));
}

static void attached_contexts_end_with_their_last_use(void **state)
{
    CUcontext own, same, now;
    CUdeviceptr at;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&same, 0)); /* primary */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(context));
    OK(cuCtxCreate(&own, NULL, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&same, 1));
    OK(cuCtxAttach(&same, 0));
    assert_ptr_equal(same, own);
    OK(cuCtxDetach(own));
    OK(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, own);
    OK(cuMemAlloc(&at, 1));
    OK(cuCtxPushCurrent(context));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(own)); /* not current */
    OK(cuCtxPopCurrent(NULL));
    OK(cuCtxDetach(own));
    OK(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, context);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(own));
    /* Destruction does not count. */
    OK(cuCtxCreate(&own, NULL, 0, 0));
    OK(cuCtxAttach(&same, 0));
    OK(cuCtxDestroy(own));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy(own));
}

/* The driver recognises every stale handle, and a context that ended costs nothing. */
static void any_number_of_contexts_may_end(void **state)
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

static void destruction_frees_all(void **state)
{
    CUcontext own;
    CUdeviceptr at;
    CUstream on;
    CUevent fence;
    size_t before = simDeviceBytesUsed(0);
    OK(cuCtxCreate(&own, NULL, 0, 0));
    OK(cuMemAlloc(&at, 10 * MIB));
    OK(cuMemAlloc(&at, 10));
    OK(cuStreamCreate(&on, 0));
    OK(cuEventCreate(&fence, 0));
    OK(cuMemsetD8Async(at, 1, 10, on));
    OK(cuEventRecord(fence, on));
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(context));
    assert_int_equal(simDeviceBytesUsed(0), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(on));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuEventQuery(fence));
}

static void primary_context_lives_again(void **state)
{
    CUcontext first, second;
    unsigned long long id, new_id;
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    OK(cuDevicePrimaryCtxRetain(&first, 1));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    assert_ptr_equal(first, second);
    OK(cuCtxGetId(first, &id));
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 1);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(1));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxGetId(first, &id));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    assert_ptr_equal(first, second);
    OK(cuCtxGetId(second, &new_id));
    assert_true(new_id != id);
    OK(cuDevicePrimaryCtxReset(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    OK(cuDevicePrimaryCtxReset(1)); /* of an inactive one: nothing */
}

static void peers_need_to_be_enabled(void **state)
{
    CUcontext other;
    CUmodule module;
    CUfunction function;
    CUdeviceptr at = alloc(4096);
    uint64_t words = 1024;
    uint32_t value = 3;
    void *params[] = {&at, &words, &value};
    int can;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    for (int enabled = 1; enabled >= 0; enabled--) {
        OK(cuCtxCreate(&other, NULL, 0, 1));
        OK(cuModuleLoadData(&module,
                            ".version 6.3\n.target sm_75\n.entry fill(.param .u64 p){ret;}"));
        OK(cuModuleGetFunction(&function, module, "fill"));
        GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(other, 0));
        OK(cuCtxEnablePeerAccess(context, 0));
        GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context, 0));
        if (!enabled) {
            OK(cuCtxDisablePeerAccess(context));
            GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context));
        }
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
        GIVES(enabled ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        OK(cuCtxDestroy(other));
        OK(cuCtxSetCurrent(context));
        if (enabled)
            assert_int_equal(wrong(at, 1024, 3), 0);
    }
    OK(cuMemFree(at));
}

static void *current_of_thread(void *out)
{
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(out));
    return NULL;
}

static void current_context_is_the_threads_own(void **state)
{
    pthread_t thread;
    CUcontext seen = context;
    assert_int_equal(pthread_create(&thread, NULL, current_of_thread, &seen), 0);
    pthread_join(thread, NULL);
    assert_null(seen);
}

/* As natively, the child of a process that has initialised CUDA cannot use it. */
static void a_forked_child_is_not_initialised(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        CUdeviceptr at;
        int count;
        CUcontext now;
        int bad = cuMemAlloc(&at, 1) != CUDA_ERROR_NOT_INITIALIZED;
        bad += cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED;
        bad += cuInit(0) != CUDA_ERROR_NOT_INITIALIZED;
        bad += cuCtxGetCurrent(&now) != CUDA_ERROR_NOT_INITIALIZED;
        bad += cuDriverGetVersion(&count) != CUDA_SUCCESS;
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    OK(cuMemFree(alloc(MIB)));
}

static void faults_strike_as_told(void **state)
{
    CUdeviceptr at;
    assert_int_equal(simFail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
    OK(cuMemFree(alloc(1)));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, 1));
    OK(cuMemFree(alloc(1)));
    assert_int_equal(simFailSpec("cuMemAlloc_v2:2+:999"), 0);
    OK(cuMemFree(alloc(1)));
    GIVES(CUDA_ERROR_UNKNOWN, cuMemAlloc(&at, 1));
    GIVES(CUDA_ERROR_UNKNOWN, cuMemAlloc(&at, 1));
    simFailClear("cuMemAlloc_v2");
    assert_int_equal(simFailSpec("cuMemAlloc_v2:p0.5:2"), 0);
    int failed = 0;
    for (int i = 0; i < 1000; i++) {
        if (cuMemAlloc(&at, 1) == CUDA_SUCCESS)
            OK(cuMemFree(at));
        else
            failed++;
    }
    assert_in_range(failed, 400, 600);
    simFailClear(NULL);
    assert_int_equal(simFailSpec("noSuchFunction:1:2"), -1);
    assert_int_equal(simFailSpec("cuMemAlloc_v2:1"), -1);
    assert_int_equal(simFailSpec("cuMemAlloc_v2:x:1"), -1);
    CUcontext own;
    OK(cuCtxCreate(&own, NULL, 0, 0));
    assert_int_equal(simFailSpec("cuCtxSynchronize:1:700!"), 0);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&at, 1));
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(context));
}

static void calls_are_counted(void **state)
{
    uint64_t before = simCallCount("cuMemAlloc_v2");
    OK(cuMemFree(alloc(1)));
    assert_int_equal(simCallCount("cuMemAlloc_v2") - before, 1);
    assert_true(simCallCount("cuMemAlloc_v9") == UINT64_MAX);
}

int main(void)
{
    CUdeviceptr at;
    int count;
    if (cuMemAlloc(&at, 1) != CUDA_ERROR_NOT_INITIALIZED ||
        cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED ||
        cuInit(1) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    const struct CMUnitTest tests[] = {
        TEST(devices_tell_what_they_are),
        TEST(contexts_stack_and_are_several),
        TEST(attached_contexts_end_with_their_last_use),
        TEST(any_number_of_contexts_may_end),
        TEST(destruction_frees_all),
        TEST(primary_context_lives_again),
        TEST(peers_need_to_be_enabled),
        TEST(current_context_is_the_threads_own),
        TEST(a_forked_child_is_not_initialised),
        TEST(faults_strike_as_told),
        TEST(calls_are_counted),
    };
    return RUN(tests);
}
