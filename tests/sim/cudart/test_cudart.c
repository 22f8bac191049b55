/* SPDX-License-Identifier: BSD-2-Clause */
/* The stand-in runtime on the simulated driver: how it reaches it, last errors, contexts, twins,
 * and what the scenes of tests/preload do not call. Looks at the driver through its own dlopen. */
#include "tests/preload/kernels.h"
#include "tests/sim/sim.h"
#include "tests/unit/cases.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#define OK(call) assert_int_equal((call), 0)
#define GIVES(code, call) assert_int_equal((call), (code))
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

TEST(first_call_asks_whole_list)
{
    int rows = 0;
#define ENTRY(name, version, flag, first, last) rows += first <= 13000 && 13000 <= last;
#include "tests/sim/entries.def"
    assert_int_equal(calls("cuGetProcAddress_v2"), 0);
    for (int i = 0; i < 2; i++) {
        OK(cudaFree(NULL));
        /* The probe with the empty name comes first. */
        assert_int_equal(calls("cuGetProcAddress_v2"), rows + 1);
        assert_int_equal(calls("cuDevicePrimaryCtxRetain"), 1);
    }
}

static void *last_error_here(void *error)
{
    *(cudaError_t *)error = cudaPeekAtLastError();
    return NULL;
}

TEST(failure_stays_the_threads_last_error_until_taken)
{
    pthread_t thread;
    cudaError_t error = cudaErrorUnknown;
    void *block = NULL;
    GIVES(cudaErrorInvalidValue, cudaFree(&block));
    OK(cudaMalloc(&block, 100));
    GIVES(cudaErrorInvalidValue, cudaPeekAtLastError());
    OK(pthread_create(&thread, NULL, last_error_here, &error));
    OK(pthread_join(thread, NULL));
    OK(error);
    GIVES(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaGetLastError());
    OK(cudaFree(block));
    assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST(device_and_context_are_the_threads_choice)
{
    struct cudaPointerAttributes attributes;
    int device = -1;
    void *block = NULL, *new = NULL;
    CUcontext primary = NULL, own = NULL, of_block = NULL;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&block, 100));
    OK(cudaPointerGetAttributes(&attributes, block));
    assert_int_equal(attributes.device, 1);
    OK(cudaSetDevice(0));
    OK(cudaFree(block));
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(99));
    GIVES(cudaErrorInvalidDevice, cudaGetLastError());
    OK(cudaGetDevice(&device));
    assert_int_equal(device, 0);
    /* The context that the program made current is used. */
    OK(DRIVER(cuCtxGetCurrent)(&primary));
    OK(DRIVER(cuCtxCreate_v2)(&own, 0, 0));
    OK(cudaMalloc(&block, 100));
    OK(DRIVER(cuPointerGetAttribute)(&of_block, CU_POINTER_ATTRIBUTE_CONTEXT,
                                     (CUdeviceptr)(uintptr_t)block));
    assert_ptr_equal(of_block, own);
    OK(cudaFree(block));
    OK(DRIVER(cuCtxDestroy_v2)(own));
    OK(DRIVER(cuCtxSetCurrent)(primary));
    /* A reset ends the memory, and the next call begins anew. */
    OK(cudaMalloc(&block, 4 << 20));
    OK(cudaDeviceReset());
    assert_int_equal(DRIVER(simDeviceBytesUsed)(0), 0);
    OK(cudaMalloc(&new, 4 << 20));
    OK(cudaMemset(new, 1, 4 << 20));
    OK(cudaFree(new));
}

TEST(twins_reach_the_per_thread_variants)
{
    static const char *const twins[] = {"cuMemAllocAsync_ptsz", "cuMemsetD8Async_ptsz",
                                        "cuMemcpyDtoH_v2_ptds", "cuMemFreeAsync_ptsz",
                                        "cuStreamSynchronize_ptsz"};
    void *block = NULL;
    unsigned char byte = 0;
    OK(cudaMallocAsync_ptsz(&block, 4096, NULL));
    OK(cudaMemsetAsync_ptsz(block, 7, 4096, NULL));
    OK(cudaMemcpy_ptds(&byte, block, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(byte, 7);
    OK(cudaFreeAsync_ptsz(block, NULL));
    OK(cudaStreamSynchronize_ptsz(NULL));
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        assert_int_equal(calls(twins[i]), 1);
    assert_int_equal(calls("cuMemAllocAsync"), 0);
    GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(&byte, &byte, 1, (enum cudaMemcpyKind)77));
    GIVES(cudaErrorInvalidMemcpyDirection, cudaGetLastError());
}

TEST(pointers_tell_their_kind)
{
    void *places[4] = {NULL, NULL, NULL, &places};
    OK(cudaMalloc(&places[0], 4096));
    OK(cudaHostAlloc(&places[1], 4096, cudaHostAllocDefault));
    OK(cudaMallocManaged(&places[2], 4096, cudaMemAttachGlobal));
    for (int i = 0; i < 4; i++) {
        const int types[] = {cudaMemoryTypeDevice, cudaMemoryTypeHost, cudaMemoryTypeManaged,
                             cudaMemoryTypeUnregistered};
        struct cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, places[i]));
        assert_int_equal(attributes.type, types[i]);
    }
    OK(cudaFree(places[0]));
    OK(cudaFreeHost(places[1]));
    OK(cudaFreeHost(NULL));
    OK(cudaFree(places[2]));
}

TEST(kernels_launch_by_handle)
{
    cudaLibrary_t library = NULL;
    cudaKernel_t fill = NULL;
    cudaStream_t stream = NULL;
    uint64_t words = 1024;
    uint32_t value = 5, word = 0;
    void *block = NULL, *args[] = {&block, &words, &value};
    OK(cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    assert_int_not_equal(cudaLibraryGetKernel(&fill, library, "no_such_kernel"), cudaSuccess);
    cudaGetLastError();
    OK(cudaLibraryGetKernel(&fill, library, "fill"));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&block, words * 4));
    cudaLaunchConfig_t config = {.gridDim = {4, 1, 1}, .blockDim = {64, 1, 1}, .stream = stream};
    OK(cudaLaunchKernelExC(&config, (const void *)fill, args));
    OK(cudaMemcpyAsync(&word, (char *)block + 4092, 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    assert_int_equal(word, 5);
    OK(cudaFree(block));
    OK(cudaStreamDestroy(stream));
}

TEST(entry_points_are_the_drivers)
{
    enum cudaDriverEntryPointQueryResult status;
    void *symbol = NULL;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &symbol, 12000, 0, &status));
    assert_int_equal(status, cudaDriverEntryPointSuccess);
    assert_ptr_equal(symbol, dlsym(driver, "cuMemAlloc_v2"));
    OK(cudaGetDriverEntryPointByVersion_ptsz("cuMemFreeAsync", &symbol, 12000, 0, &status));
    assert_ptr_equal(symbol, dlsym(driver, "cuMemFreeAsync_ptsz"));
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &symbol, 12000, 0, &status));
    assert_int_equal(status, cudaDriverEntryPointSymbolNotFound);
    assert_null(symbol);
}

TEST(peers_are_reached_through_primary_contexts)
{
    void *here = NULL, *there = NULL;
    unsigned char byte = 0;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&there, 4096));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&here, 4096));
    GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    GIVES(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaMemset(here, 9, 4096));
    OK(cudaMemcpy(there, here, 4096, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(&byte, there, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(byte, 9);
    OK(cudaDeviceDisablePeerAccess(1));
    OK(cudaFree(here));
    OK(cudaFree(there));
}

int main(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || dlsym(driver, "simCallCount") == NULL)
        return 77;
    return play_tests(NULL, NULL);
}
