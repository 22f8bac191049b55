/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The runtime's device calls: selection, properties, synchronisation, reset, peers, versions.
 * No state of its own.
 */
#include "tests/sim/cudart/cudart.h"

#include <string.h>

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

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    return IN_DRIVER(
        CALL(cuDeviceGetAttribute, 2000, value, (CUdevice_attribute)attribute, device));
}

static int attribute_of(CUdevice_attribute attribute, int device)
{
    int value = 0;
    CALL(cuDeviceGetAttribute, 2000, &value, attribute, device);
    return value;
}

static cudaError_t properties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    cudaError_t error = CALL(cuDeviceGetName, 2000, p->name, (int)sizeof p->name, device);
    if (error != cudaSuccess)
        return error;
    CALL(cuDeviceTotalMem, 3020, &p->totalGlobalMem, device);
    CALL(cuDeviceGetUuid, 9020, (CUuuid *)&p->uuid, device);
    p->major = attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    p->minor = attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    p->multiProcessorCount = attribute_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    p->warpSize = attribute_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    p->pciBusID = attribute_of(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    p->pciDeviceID = attribute_of(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
    p->pciDomainID = attribute_of(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
    p->unifiedAddressing = attribute_of(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device);
    p->managedMemory = attribute_of(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device);
    p->memoryPoolsSupported = attribute_of(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device);
    p->canMapHostMemory = attribute_of(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, device);
    p->concurrentKernels = attribute_of(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    return IN_DRIVER(p == NULL ? cudaErrorInvalidValue : properties(p, device));
}

cudaError_t cudaDeviceSynchronize(void)
{
    return IN_CONTEXT(CALL0(cuCtxSynchronize, 2000));
}

cudaError_t cudaDeviceReset(void)
{
    return IN_DRIVER(context_reset());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return IN_CONTEXT(CALL(cuCtxGetStreamPriorityRange, 5050, least, greatest));
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
    /* Without a driver this call succeeds and says 0. */
    *version = 0;
    if (driver_load() == cudaErrorInsufficientDriver)
        return cudaSuccess;
    return error_record(CALL(cuDriverGetVersion, 2020, version));
}
