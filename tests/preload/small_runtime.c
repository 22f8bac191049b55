/* SPDX-License-Identifier: BSD-2-Clause */
/* A shared runtime that counts its calls. Of 11.8, of which every call is to arrive here. */
#include "tests/preload/small_runtime.h"

#include <cuda.h>
#include <stdatomic.h>

static atomic_int num_mallocs, num_frees;

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 11080;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t size_bytes)
{
    CUdeviceptr address = 0;
    CUresult rc = cuMemAlloc(&address, size_bytes);
    atomic_fetch_add(&num_mallocs, 1);
    *p = (void *)(uintptr_t)address;
    return (cudaError_t)rc;
}

cudaError_t cudaFree(void *p)
{
    atomic_fetch_add(&num_frees, 1);
    return (cudaError_t)cuMemFree((CUdeviceptr)(uintptr_t)p);
}

int small_runtime_calls(void)
{
    return atomic_exchange(&num_mallocs, 0) * 100 + atomic_exchange(&num_frees, 0);
}
