/* SPDX-License-Identifier: BSD-2-Clause */
/* gpu.h through the CUDA runtime: what a program built by nvcc calls, whichever libcudart it is
 * linked with. Kernels are handles of a library loaded from the PTX text. A RUNTIME_RELEASE before
 * 12.8 has no such calls; there they are the driver's functions of a module. State: the kernels.
 * The first gpu_open loads them under a lock. They are loaded again after a reset, also of a device
 * that no other thread uses, while other threads may launch. */
#include "tests/preload/gpu.h"
#include "tests/preload/kernels.h"
#include "tests/preload/track.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#ifndef RUNTIME_RELEASE
#define RUNTIME_RELEASE 13000
#endif
#define HAS_LIBRARIES (RUNTIME_RELEASE >= 12080)
#define HAS_ENTRY_VERSIONS (RUNTIME_RELEASE >= 12050)

const bool gpu_is_runtime = true;

static bool kernels_loaded;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* A driver function, as the runtime looks it up for its program. */
static int entry_point(const char *name, void *function)
{
    void *symbol = NULL;
#if HAS_ENTRY_VERSIONS
    enum cudaDriverEntryPointQueryResult status;
    int rc = cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &status);
#else
/* Deprecated, and all that there was. Release 11 takes no status, and leaves it alone. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    int rc = cudaGetDriverEntryPoint(name, &symbol, cudaEnableDefault, NULL);
#endif
    memcpy(function, &symbol, sizeof symbol);
    return rc != 0 || symbol != NULL ? rc : cudaErrorSymbolNotFound;
}

#if HAS_LIBRARIES
static _Atomic(cudaKernel_t) kernels[GPU_KERNELS];

static int load_kernels(void)
{
    cudaLibrary_t library = NULL;
    cudaKernel_t kernel;
    int rc = cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);
    for (int i = 0; rc == 0 && i < GPU_KERNELS; i++)
        if ((rc = cudaLibraryGetKernel(&kernel, library, gpu_kernel_names[i])) == 0)
            atomic_store(&kernels[i], kernel);
    return rc;
}

static int launch(enum gpu_kernel kernel, dim3 grid, dim3 block, void **params, CUstream stream)
{
    return cudaLaunchKernel((const void *)kernels[kernel], grid, block, params, 0, stream);
}

int gpu_launch_early(enum gpu_kernel kernel, CUstream stream, void **params)
{
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                     .val = {.programmaticStreamSerializationAllowed = 1}};
    cudaLaunchConfig_t config = {{64, 1, 1}, {128, 1, 1}, 0, stream, &attribute, 1};
    return cudaLaunchKernelExC(&config, (const void *)kernels[kernel], params);
}
#else
static _Atomic(CUfunction) kernels[GPU_KERNELS];
static CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, CUstream, void **, void **);

static int load_kernels(void)
{
    CUresult (*load)(CUmodule *, const void *) = NULL;
    CUresult (*find)(CUfunction *, CUmodule, const char *) = NULL;
    CUmodule module = NULL;
    CUfunction kernel;
    int rc = entry_point("cuModuleLoadData", &load);
    if (rc == 0)
        rc = entry_point("cuModuleGetFunction", &find);
    if (rc == 0)
        rc = entry_point("cuLaunchKernel", &launch_kernel);
    if (rc == 0)
        rc = (int)load(&module, kernels_ptx);
    for (int i = 0; rc == 0 && i < GPU_KERNELS; i++)
        if ((rc = (int)find(&kernel, module, gpu_kernel_names[i])) == 0)
            atomic_store(&kernels[i], kernel);
    return rc;
}

static int launch(enum gpu_kernel kernel, dim3 grid, dim3 block, void **params, CUstream stream)
{
    return (int)launch_kernel(kernels[kernel], grid.x, grid.y, grid.z, block.x, block.y, block.z, 0,
                              stream, params, NULL);
}

/* Release 11 has no such launch. */
int gpu_launch_early(enum gpu_kernel kernel, CUstream stream, void **params)
{
    return gpu_launch(kernel, stream, params);
}
#endif

int gpu_open(int device)
{
    int rc = cudaSetDevice(device);
    if (rc == 0)
        rc = cudaFree(NULL);
    pthread_mutex_lock(&kernels_lock);
    if (rc == 0 && !kernels_loaded)
        rc = load_kernels();
    kernels_loaded |= rc == 0;
    pthread_mutex_unlock(&kernels_lock);
    return rc;
}

int gpu_device_count(int *count)
{
    return cudaGetDeviceCount(count);
}

#define CALL(name, parameters, runtime, driver)                                                    \
    int name parameters                                                                            \
    {                                                                                              \
        return (int)(runtime);                                                                     \
    }
#include "tests/preload/gpu_calls.def"

int gpu_malloc(uint64_t *address, size_t size_bytes)
{
    void *p = NULL;
    int rc = cudaMalloc(&p, size_bytes);
    *address = (uintptr_t)p;
    return track_malloc(rc, *address, size_bytes);
}

int gpu_free(uint64_t address)
{
    track_free(address);
    return cudaFree(pointer(address));
}

int gpu_malloc_pitch(uint64_t *address, size_t *pitch_bytes, size_t width_bytes, size_t height)
{
    void *p = NULL;
    int rc = cudaMallocPitch(&p, pitch_bytes, width_bytes, height);
    *address = (uintptr_t)p;
    return track_malloc(rc, *address, *pitch_bytes * height);
}

int gpu_malloc_async(uint64_t *address, size_t size_bytes, CUstream stream)
{
    void *p = NULL;
    int rc = cudaMallocAsync(&p, size_bytes, stream);
    *address = (uintptr_t)p;
    return rc;
}

int gpu_free_async(uint64_t address, CUstream stream)
{
    track_free(address);
    return cudaFreeAsync(pointer(address), stream);
}

int gpu_capture_exchange(CUstreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode exchanged = (enum cudaStreamCaptureMode) * mode;
    int rc = cudaThreadExchangeStreamCaptureMode(&exchanged);
    *mode = (CUstreamCaptureMode)exchanged;
    return rc;
}

int gpu_graph_destroy(CUgraph graph, CUgraphExec exec)
{
    cudaError_t rc = exec != NULL ? cudaGraphExecDestroy(exec) : cudaSuccess;
    return rc == cudaSuccess && graph != NULL ? cudaGraphDestroy(graph) : rc;
}

int gpu_reset(void)
{
    pthread_mutex_lock(&kernels_lock);
    kernels_loaded = false;
    pthread_mutex_unlock(&kernels_lock);
    return cudaDeviceReset();
}

int gpu_peer_can(bool *can, int device, int peer)
{
    int answer = 0;
    int rc = cudaDeviceCanAccessPeer(&answer, device, peer);
    *can = answer != 0;
    return rc;
}

int gpu_peer_enable(int peer)
{
    return cudaDeviceEnablePeerAccess(peer, 0);
}

int gpu_peer_disable(int peer)
{
    return cudaDeviceDisablePeerAccess(peer);
}

int gpu_ipc_export(CUipcMemHandle *handle, uint64_t address)
{
    cudaIpcMemHandle_t runtime_handle;
    int rc = cudaIpcGetMemHandle(&runtime_handle, pointer(address));
    if (rc == 0)
        memcpy(handle, &runtime_handle, sizeof *handle);
    return rc;
}

int gpu_ipc_open(uint64_t *address, CUipcMemHandle handle)
{
    cudaIpcMemHandle_t runtime_handle;
    void *p = NULL;
    memcpy(&runtime_handle, &handle, sizeof runtime_handle);
    int rc = cudaIpcOpenMemHandle(&p, runtime_handle, cudaIpcMemLazyEnablePeerAccess);
    *address = (uintptr_t)p;
    return rc;
}

int gpu_ipc_close(uint64_t address)
{
    return cudaIpcCloseMemHandle(pointer(address));
}

int gpu_address_range(uint64_t *base, size_t *size_bytes, uint64_t address)
{
    /* The runtime has no such call; programs ask the driver for it this way. */
    CUdeviceptr found = 0;
    CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr) = NULL;
    int rc = entry_point("cuMemGetAddressRange", &range);
    if (rc != 0)
        return rc;
    rc = (int)range(&found, size_bytes, (CUdeviceptr)address);
    *base = found;
    return rc;
}

int gpu_pointer_is_device(bool *is_device, int *device, uint64_t address)
{
    struct cudaPointerAttributes attributes;
    int rc = cudaPointerGetAttributes(&attributes, pointer(address));
    if (rc == 0) {
        *is_device = attributes.type == cudaMemoryTypeDevice;
        *device = attributes.device;
    }
    return rc;
}

int gpu_launch(enum gpu_kernel kernel, CUstream stream, void **params)
{
    dim3 grid = {kernel == GPU_WAIT_FLAG ? 1 : 64, 1, 1};
    dim3 block = {kernel == GPU_WAIT_FLAG ? 1 : 128, 1, 1};
    return launch(kernel, grid, block, params, stream);
}
