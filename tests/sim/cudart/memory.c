/* SPDX-License-Identifier: BSD-2-Clause */
/* The runtime's allocation calls and pointer attributes. The runtime itself answers only for device
 * memory of size zero; all else is the driver's answer. No state of its own. */
#include "tests/sim/cudart/cudart.h"

#include <string.h>

static CUdeviceptr device_pointer(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    if (!context_enter())
        return cudaPeekAtLastError();
    if (pointer == NULL)
        return error_record(cudaErrorInvalidValue);
    *pointer = NULL;
    if (size == 0)
        return cudaSuccess;
    return error_record(CALL(cuMemAlloc, 3020, (CUdeviceptr *)pointer, size));
}

cudaError_t cudaFree(void *pointer)
{
    return IN_CONTEXT(pointer == NULL ? cudaSuccess
                                      : CALL(cuMemFree, 3020, device_pointer(pointer)));
}

cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    if (!context_enter())
        return cudaPeekAtLastError();
    if (pointer == NULL || pitch == NULL)
        return error_record(cudaErrorInvalidValue);
    *pointer = NULL;
    *pitch = 0;
    if (width == 0 || height == 0)
        return cudaSuccess;
    return error_record(
        CALL(cuMemAllocPitch, 3020, (CUdeviceptr *)pointer, pitch, width, height, 4));
}

cudaError_t cudaFreeHost(void *pointer)
{
    return IN_CONTEXT(pointer == NULL ? cudaSuccess : CALL(cuMemFreeHost, 2000, pointer));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    return IN_DRIVER(CALL(cuDeviceGetDefaultMemPool, 11020, pool, device));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    return IN_DRIVER(CALL(cuMemPoolTrimTo, 11020, pool, keep));
}

static cudaError_t pointer_attributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    CUmemorytype type = 0;
    unsigned managed = 0;
    int ordinal = -2;
    CUdeviceptr device = 0;
    void *host = NULL;
    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
    };
    void *answers[] = {&type, &managed, &ordinal, &device, &host};
    TRY(CALL(cuPointerGetAttributes, 7000, sizeof asked / sizeof *asked, asked, answers,
             device_pointer(pointer)));
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeUnregistered;
    if (managed)
        attributes->type = cudaMemoryTypeManaged;
    else if (type == CU_MEMORYTYPE_DEVICE)
        attributes->type = cudaMemoryTypeDevice;
    else if (type == CU_MEMORYTYPE_HOST)
        attributes->type = cudaMemoryTypeHost;
    attributes->device = ordinal;
    attributes->devicePointer = (void *)(uintptr_t)device;
    attributes->hostPointer =
        attributes->type == cudaMemoryTypeUnregistered ? (void *)(uintptr_t)pointer : host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    return IN_CONTEXT(attributes == NULL ? cudaErrorInvalidValue
                                         : pointer_attributes(attributes, pointer));
}
