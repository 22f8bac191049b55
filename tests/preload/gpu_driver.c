/* SPDX-License-Identifier: BSD-2-Clause */
/* gpu.h through the driver API, each function found by the build's route (gpu_resolve.h). Kernels
 * are handles of a library loaded from the PTX text. State: that library's kernels, loaded by
 * the first gpu_open under a lock, and again after a reset. */
#include "tests/preload/gpu.h"
#include "tests/preload/gpu_resolve.h"
#include "tests/preload/kernels.h"
#include "tests/preload/track.h"

#include <pthread.h>
#include <stdatomic.h>

/* A simulated driver may lack these: the calls then say CUDA_ERROR_NOT_FOUND. */
#pragma weak cuArrayCreate_v2
#pragma weak cuArrayDestroy
#pragma weak cuIpcGetMemHandle
#pragma weak cuIpcOpenMemHandle_v2
#pragma weak cuIpcCloseMemHandle

const bool gpu_is_runtime = false;

static _Atomic(CUkernel) kernels[GPU_KERNELS];
static bool kernels_loaded;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult load_kernels(void)
{
    CUlibrary library = NULL;
    CUkernel kernel;
    CUresult rc = DRIVER(cuLibraryLoadData)(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);
    for (int i = 0; rc == CUDA_SUCCESS && i < GPU_KERNELS; i++)
        if ((rc = DRIVER(cuLibraryGetKernel)(&kernel, library, gpu_kernel_names[i])) ==
            CUDA_SUCCESS)
            atomic_store(&kernels[i], kernel);
    return rc;
}

int gpu_open(int device)
{
    CUcontext context = NULL;
    CUresult rc = DRIVER(cuInit)(0);
    if (rc == CUDA_SUCCESS)
        rc = DRIVER(cuDevicePrimaryCtxRetain)(&context, device);
    if (rc == CUDA_SUCCESS)
        rc = DRIVER(cuCtxSetCurrent)(context);
    pthread_mutex_lock(&kernels_lock);
    if (rc == CUDA_SUCCESS && !kernels_loaded)
        rc = load_kernels();
    kernels_loaded |= rc == CUDA_SUCCESS;
    pthread_mutex_unlock(&kernels_lock);
    return (int)rc;
}

int gpu_device_count(int *count)
{
    CUresult rc = DRIVER(cuInit)(0);
    return (int)(rc == CUDA_SUCCESS ? DRIVER(cuDeviceGetCount)(count) : rc);
}

#define CALL(name, parameters, runtime, driver)                                                    \
    int name parameters                                                                            \
    {                                                                                              \
        return (int)(driver);                                                                      \
    }
#include "tests/preload/gpu_calls.def"

int gpu_malloc(uint64_t *address, size_t size_bytes)
{
    CUdeviceptr p = 0;
    int rc = (int)DRIVER(cuMemAlloc)(&p, size_bytes);
    *address = p;
    return track_malloc(rc, p, size_bytes);
}

int gpu_free(uint64_t address)
{
    track_free(address);
    return (int)DRIVER(cuMemFree)((CUdeviceptr)address);
}

int gpu_malloc_pitch(uint64_t *address, size_t *pitch_bytes, size_t width_bytes, size_t height)
{
    CUdeviceptr p = 0;
    int rc = (int)DRIVER(cuMemAllocPitch)(&p, pitch_bytes, width_bytes, height, 4);
    *address = p;
    return track_malloc(rc, p, *pitch_bytes * height);
}

int gpu_malloc_async(uint64_t *address, size_t size_bytes, CUstream stream)
{
    CUdeviceptr p = 0;
    int rc = (int)DRIVER(cuMemAllocAsync)(&p, size_bytes, stream);
    *address = p;
    return rc;
}

int gpu_free_async(uint64_t address, CUstream stream)
{
    track_free(address);
    return (int)DRIVER(cuMemFreeAsync)((CUdeviceptr)address, stream);
}

int gpu_capture_exchange(CUstreamCaptureMode *mode)
{
    return (int)DRIVER(cuThreadExchangeStreamCaptureMode)(mode);
}

int gpu_graph_destroy(CUgraph graph, CUgraphExec exec)
{
    CUresult rc = exec != NULL ? DRIVER(cuGraphExecDestroy)(exec) : CUDA_SUCCESS;
    return (int)(rc == CUDA_SUCCESS && graph != NULL ? DRIVER(cuGraphDestroy)(graph) : rc);
}

int gpu_reset(void)
{
    CUdevice device = 0;
    CUresult rc = DRIVER(cuCtxGetDevice)(&device);
    pthread_mutex_lock(&kernels_lock);
    kernels_loaded = false;
    pthread_mutex_unlock(&kernels_lock);
    return (int)(rc == CUDA_SUCCESS ? DRIVER(cuDevicePrimaryCtxReset)(device) : rc);
}

int gpu_peer_can(bool *can, int device, int peer)
{
    int answer = 0;
    CUresult rc = DRIVER(cuDeviceCanAccessPeer)(&answer, device, peer);
    *can = answer != 0;
    return (int)rc;
}

int gpu_peer_enable(int peer)
{
    CUcontext context = NULL;
    CUresult rc = DRIVER(cuDevicePrimaryCtxRetain)(&context, peer);
    return (int)(rc == CUDA_SUCCESS ? DRIVER(cuCtxEnablePeerAccess)(context, 0) : rc);
}

int gpu_peer_disable(int peer)
{
    CUcontext context = NULL;
    CUresult rc = DRIVER(cuDevicePrimaryCtxRetain)(&context, peer);
    return (int)(rc == CUDA_SUCCESS ? DRIVER(cuCtxDisablePeerAccess)(context) : rc);
}

int gpu_ipc_export(CUipcMemHandle *handle, uint64_t address)
{
    CUresult (*export)(CUipcMemHandle *, CUdeviceptr) = DRIVER(cuIpcGetMemHandle);
    return (int)(export != NULL ? export(handle, (CUdeviceptr)address) : CUDA_ERROR_NOT_FOUND);
}

int gpu_ipc_open(uint64_t *address, CUipcMemHandle handle)
{
    CUdeviceptr p = 0;
    CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned) = DRIVER(cuIpcOpenMemHandle);
    CUresult rc =
        open != NULL ? open(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) : CUDA_ERROR_NOT_FOUND;
    *address = p;
    return (int)rc;
}

int gpu_ipc_close(uint64_t address)
{
    CUresult (*close)(CUdeviceptr) = DRIVER(cuIpcCloseMemHandle);
    return (int)(close != NULL ? close((CUdeviceptr)address) : CUDA_ERROR_NOT_FOUND);
}

int gpu_address_range(uint64_t *base, size_t *size_bytes, uint64_t address)
{
    CUdeviceptr found = 0;
    CUresult rc = DRIVER(cuMemGetAddressRange)(&found, size_bytes, (CUdeviceptr)address);
    *base = found;
    return (int)rc;
}

int gpu_pointer_is_device(bool *is_device, int *device, uint64_t address)
{
    unsigned type = 0;
    CUresult rc = DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                (CUdeviceptr)address);
    *is_device = type == CU_MEMORYTYPE_DEVICE;
    if (rc == CUDA_SUCCESS)
        rc = DRIVER(cuPointerGetAttribute)(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                           (CUdeviceptr)address);
    return (int)rc;
}

int gpu_launch(enum gpu_kernel kernel, CUstream stream, void **params)
{
    unsigned grid = kernel == GPU_WAIT_FLAG ? 1 : 64;
    unsigned block = kernel == GPU_WAIT_FLAG ? 1 : 128;
    return (int)DRIVER(cuLaunchKernel)((CUfunction)kernels[kernel], grid, 1, 1, block, 1, 1, 0,
                                       stream, params, NULL);
}

int gpu_launch_early(enum gpu_kernel kernel, CUstream stream, void **params)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {64, 1, 1, 128, 1, 1, 0, stream, &attribute, 1};
    return (int)DRIVER(cuLaunchKernelEx)(&config, (CUfunction)kernels[kernel], params, NULL);
}
