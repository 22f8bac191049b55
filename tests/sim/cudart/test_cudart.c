/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The stand-in runtime on the simulated driver: how it reaches it, contexts, last errors, twins,
 * and one round through each family of calls. Looks at the driver through its own dlopen.
 */
#include "tests/preload/kernels.h"
#include "tests/sim/sim.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRIVER(name) ((__typeof__(&(name)))driver_function(#name))

static void *driver;

static void (*driver_function(const char *name))(void)
{
    void *symbol = dlsym(driver, name);
    void (*function)(void);
    assert_non_null(symbol);
    memcpy(&function, &symbol, sizeof function);
    return function;
}

static uint64_t calls(const char *name)
{
    return DRIVER(simCallCount)(name);
}

static void first_call_asks_whole_list(void **state)
{
    (void)state;
    int rows = 0;
#define ENTRY(name, version, flag, first, last) rows += first <= 13000 && 13000 <= last;
#include "tests/sim/cudart/entries.def"
    assert_int_equal(calls("cuGetProcAddress_v2"), 0);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    /* The probe with the empty name comes first. */
    assert_int_equal(calls("cuGetProcAddress_v2"), rows + 1);
    assert_int_equal(calls("cuDevicePrimaryCtxRetain"), 1);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    assert_int_equal(calls("cuGetProcAddress_v2"), rows + 1);
    assert_int_equal(calls("cuDevicePrimaryCtxRetain"), 1);
}

static void failure_stays_last_error_until_taken(void **state)
{
    (void)state;
    void *block = NULL;
    assert_int_equal(cudaFree(&block), cudaErrorInvalidValue);
    assert_int_equal(cudaMalloc(&block, 100), cudaSuccess);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaFree(block), cudaSuccess);
}

static void *last_error_here(void *error)
{
    *(cudaError_t *)error = cudaPeekAtLastError();
    return NULL;
}

static void last_error_is_the_threads_own(void **state)
{
    (void)state;
    pthread_t thread;
    cudaError_t error = cudaErrorUnknown;
    assert_int_equal(cudaFree(&error), cudaErrorInvalidValue);
    assert_int_equal(pthread_create(&thread, NULL, last_error_here, &error), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(error, cudaSuccess);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

static void device_is_the_threads_choice(void **state)
{
    (void)state;
    struct cudaPointerAttributes attributes;
    int device = -1;
    void *block = NULL;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    assert_int_equal(device, 1);
    assert_int_equal(cudaMalloc(&block, 100), cudaSuccess);
    assert_int_equal(cudaPointerGetAttributes(&attributes, block), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(attributes.device, 1);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaFree(block), cudaSuccess);
    assert_int_equal(cudaSetDevice(99), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    assert_int_equal(device, 0);
}

static void programs_own_context_is_used(void **state)
{
    (void)state;
    CUcontext primary = NULL;
    CUcontext own = NULL;
    CUcontext of_block = NULL;
    void *block = NULL;
    assert_int_equal(DRIVER(cuCtxGetCurrent)(&primary), CUDA_SUCCESS);
    assert_int_equal(DRIVER(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cudaMalloc(&block, 100), cudaSuccess);
    assert_int_equal(DRIVER(cuPointerGetAttribute)(&of_block, CU_POINTER_ATTRIBUTE_CONTEXT,
                                                   (CUdeviceptr)(uintptr_t)block),
                     CUDA_SUCCESS);
    assert_ptr_equal(of_block, own);
    assert_int_equal(cudaFree(block), cudaSuccess);
    assert_int_equal(DRIVER(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
    assert_int_equal(DRIVER(cuCtxSetCurrent)(primary), CUDA_SUCCESS);
}

static void reset_ends_memory_and_next_call_begins_anew(void **state)
{
    (void)state;
    void *old = NULL;
    void *new = NULL;
    assert_int_equal(cudaMalloc(&old, 4 << 20), cudaSuccess);
    assert_int_equal(cudaDeviceReset(), cudaSuccess);
    assert_int_equal(DRIVER(simDeviceBytesUsed)(0), 0);
    assert_int_equal(cudaMalloc(&new, 4 << 20), cudaSuccess);
    assert_int_equal(cudaMemset(new, 1, 4 << 20), cudaSuccess);
    assert_int_equal(cudaFree(new), cudaSuccess);
}

static void twins_reach_the_per_thread_variants(void **state)
{
    (void)state;
    void *block = NULL;
    unsigned char byte = 0;
    assert_int_equal(cudaMallocAsync_ptsz(&block, 4096, NULL), cudaSuccess);
    assert_int_equal(cudaMemsetAsync_ptsz(block, 7, 4096, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpy_ptds(&byte, block, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(byte, 7);
    assert_int_equal(cudaFreeAsync_ptsz(block, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize_ptsz(NULL), cudaSuccess);
    static const char *const twins[] = {"cuMemAllocAsync_ptsz", "cuMemsetD8Async_ptsz",
                                        "cuMemcpyDtoH_v2_ptds", "cuMemFreeAsync_ptsz",
                                        "cuStreamSynchronize_ptsz"};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        assert_int_equal(calls(twins[i]), 1);
    assert_int_equal(calls("cuMemAllocAsync"), 0);
}

static void copies_go_where_their_kind_says(void **state)
{
    (void)state;
    unsigned char from[64];
    unsigned char to[64] = {0};
    void *block = NULL;
    void *copy = NULL;
    for (int i = 0; i < 64; i++)
        from[i] = (unsigned char)i;
    assert_int_equal(cudaMalloc(&block, 64), cudaSuccess);
    assert_int_equal(cudaMalloc(&copy, 64), cudaSuccess);
    assert_int_equal(cudaMemcpy(block, from, 64, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(copy, block, 64, cudaMemcpyDeviceToDevice, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, copy, 64, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_memory_equal(to, from, sizeof to);
    assert_int_equal(cudaMemcpy(to, from, 1, (enum cudaMemcpyKind)77),
                     cudaErrorInvalidMemcpyDirection);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
    assert_int_equal(cudaFree(block), cudaSuccess);
    assert_int_equal(cudaFree(copy), cudaSuccess);
}

static void host_memory_is_pinned_and_known(void **state)
{
    (void)state;
    struct cudaPointerAttributes attributes;
    void *host = NULL;
    void *managed = NULL;
    int on_stack = 0;
    assert_int_equal(cudaHostAlloc(&host, 4096, cudaHostAllocDefault), cudaSuccess);
    assert_int_equal(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_int_equal(cudaFreeHost(host), cudaSuccess);
    assert_int_equal(cudaFreeHost(NULL), cudaSuccess);
    assert_int_equal(cudaMallocManaged(&managed, 4096, cudaMemAttachGlobal), cudaSuccess);
    assert_int_equal(cudaPointerGetAttributes(&attributes, managed), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeManaged);
    assert_int_equal(cudaFree(managed), cudaSuccess);
    assert_int_equal(cudaPointerGetAttributes(&attributes, &on_stack), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
}

static void streams_and_events_order_work(void **state)
{
    (void)state;
    cudaStream_t first = NULL;
    cudaStream_t second = NULL;
    cudaEvent_t start = NULL;
    cudaEvent_t end = NULL;
    assert_int_equal(cudaStreamCreate(&first), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&start, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
    assert_int_equal(cudaEventRecord(start, first), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(second, start, 0), cudaSuccess);
    assert_int_equal(cudaEventRecord(end, second), cudaSuccess);
    assert_int_equal(cudaEventSynchronize(end), cudaSuccess);
    assert_int_equal(cudaEventQuery(end), cudaSuccess);
    assert_int_equal(cudaStreamQuery(second), cudaSuccess);
    assert_int_equal(cudaEventDestroy(start), cudaSuccess);
    assert_int_equal(cudaEventDestroy(end), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(first), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(second), cudaSuccess);
}

static void kernels_launch_by_handle_and_in_graphs(void **state)
{
    (void)state;
    cudaLibrary_t library = NULL;
    cudaKernel_t fill = NULL;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    uint64_t words = 1024;
    uint32_t value = 5;
    uint32_t word = 0;
    void *block = NULL;
    assert_int_equal(cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0),
                     cudaSuccess);
    assert_int_equal(cudaLibraryGetKernel(&fill, library, "fill"), cudaSuccess);
    assert_int_not_equal(cudaLibraryGetKernel(&fill, library, "no_such_kernel"), cudaSuccess);
    cudaGetLastError();
    assert_int_equal(cudaLibraryGetKernel(&fill, library, "fill"), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc(&block, words * 4), cudaSuccess);
    void *args[] = {&block, &words, &value};
    cudaLaunchConfig_t config = {.gridDim = {4, 1, 1}, .blockDim = {64, 1, 1}, .stream = stream};
    assert_int_equal(cudaLaunchKernelExC(&config, (const void *)fill, args), cudaSuccess);
    assert_int_equal(
        cudaMemcpyAsync(&word, (char *)block + 4092, 4, cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(word, 5);

    value = 6;
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    assert_int_equal(mode, cudaStreamCaptureModeGlobal);
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(
        cudaLaunchKernel((const void *)fill, config.gridDim, config.blockDim, args, 0, stream),
        cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(&word, block, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(word, 6);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(cudaFree(block), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void entry_points_are_the_drivers(void **state)
{
    (void)state;
    enum cudaDriverEntryPointQueryResult status;
    void *symbol = NULL;
    assert_int_equal(
        cudaGetDriverEntryPointByVersion("cuMemAlloc", &symbol, 12000, cudaEnableDefault, &status),
        cudaSuccess);
    assert_int_equal(status, cudaDriverEntryPointSuccess);
    assert_ptr_equal(symbol, dlsym(driver, "cuMemAlloc_v2"));
    assert_int_equal(cudaGetDriverEntryPointByVersion_ptsz("cuMemFreeAsync", &symbol, 12000,
                                                           cudaEnableDefault, &status),
                     cudaSuccess);
    assert_ptr_equal(symbol, dlsym(driver, "cuMemFreeAsync_ptsz"));
    assert_int_equal(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &symbol, 12000,
                                                      cudaEnableDefault, &status),
                     cudaSuccess);
    assert_int_equal(status, cudaDriverEntryPointSymbolNotFound);
    assert_null(symbol);
}

static void peers_are_reached_through_primary_contexts(void **state)
{
    (void)state;
    int can = 0;
    void *here = NULL;
    void *there = NULL;
    unsigned char byte = 0;
    assert_int_equal(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
    assert_int_equal(can, 1);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaMalloc(&there, 4096), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaMalloc(&here, 4096), cudaSuccess);
    assert_int_equal(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    assert_int_equal(cudaMemset(here, 9, 4096), cudaSuccess);
    assert_int_equal(cudaMemcpy(there, here, 4096, cudaMemcpyDeviceToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(&byte, there, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(byte, 9);
    assert_int_equal(cudaDeviceDisablePeerAccess(1), cudaSuccess);
    assert_int_equal(cudaFree(here), cudaSuccess);
    assert_int_equal(cudaFree(there), cudaSuccess);
    assert_int_equal(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled);
}

static void versions_and_errors_have_words(void **state)
{
    (void)state;
    int version = 0;
    assert_int_equal(cudaRuntimeGetVersion(&version), cudaSuccess);
    assert_int_equal(version, 13000);
    assert_int_equal(cudaDriverGetVersion(&version), cudaSuccess);
    assert_true(version >= 13000);
    assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

int main(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || dlsym(driver, "simCallCount") == NULL)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_call_asks_whole_list),
        cmocka_unit_test(failure_stays_last_error_until_taken),
        cmocka_unit_test(last_error_is_the_threads_own),
        cmocka_unit_test(device_is_the_threads_choice),
        cmocka_unit_test(programs_own_context_is_used),
        cmocka_unit_test(twins_reach_the_per_thread_variants),
        cmocka_unit_test(copies_go_where_their_kind_says),
        cmocka_unit_test(host_memory_is_pinned_and_known),
        cmocka_unit_test(streams_and_events_order_work),
        cmocka_unit_test(kernels_launch_by_handle_and_in_graphs),
        cmocka_unit_test(entry_points_are_the_drivers),
        cmocka_unit_test(peers_are_reached_through_primary_contexts),
        cmocka_unit_test(versions_and_errors_have_words),
        cmocka_unit_test(reset_ends_memory_and_next_call_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
