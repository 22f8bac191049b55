/* SPDX-License-Identifier: BSD-2-Clause */
/* The runtime's device calls: selection, synchronisation, reset, peers, versions.
 * No state of its own. */
#include "tests/sim/cudart/cudart.h"

cudaError_t cudaGetDeviceCount(int *count)
{
    return IN_DRIVER(count == NULL ? cudaErrorInvalidValue : CALL(cuDeviceGetCount, 2000, count));
}

cudaError_t cudaSetDevice(int device)
{
    return IN_DRIVER(context_select(device));
}

cudaError_t cudaGetDevice(int *device)
{
    if (!driver_enter())
        return cudaPeekAtLastError();
    if (device == NULL)
        return error_record(cudaErrorInvalidValue);
    *device = context_device();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return IN_CONTEXT(CALL0(cuCtxSynchronize, 2000));
}

cudaError_t cudaDeviceReset(void)
{
    return IN_DRIVER(context_reset());
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return IN_DRIVER(CALL(cuDeviceCanAccessPeer, 4000, can, device, peer));
}

static cudaError_t enable_peer(int peer, unsigned flags)
{
    CUcontext context = NULL;
    cudaError_t error = context_primary(peer, &context);
    return error == cudaSuccess ? CALL(cuCtxEnablePeerAccess, 4000, context, flags) : error;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return IN_CONTEXT(enable_peer(peer, flags));
}

static cudaError_t disable_peer(int peer)
{
    CUcontext context = NULL;
    cudaError_t error = context_primary(peer, &context);
    return error == cudaSuccess ? CALL(cuCtxDisablePeerAccess, 4000, context) : error;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    return IN_CONTEXT(disable_peer(peer));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == NULL)
        return error_record(cudaErrorInvalidValue);
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == NULL)
        return error_record(cudaErrorInvalidValue);
    /* Without a driver this call succeeds with 0. */
    *version = 0;
    if (driver_load() == cudaErrorInsufficientDriver)
        return cudaSuccess;
    return error_record(CALL(cuDriverGetVersion, 2020, version));
}
