/* SPDX-License-Identifier: BSD-2-Clause */
/* cuda.h for the author of a driver: it declares each ABI variant (_v2, _ptds, _ptsz) under its own
 * name, with default visibility. Every file of the simulated driver includes it instead of
 * <cuda.h>. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT
#include <cuda.h>
#if CUDA_VERSION < 13010
#pragma GCC visibility push(default)
CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr,
                                        size_t, unsigned long long);
#pragma GCC visibility pop
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* A 2 MiB page: the VMM granularity, and the unit of physical memory. */
#define PAGE_BYTES (2 * MIB)

/* For functions that answer a CUresult: the answer is this error if the condition holds. */
#define REFUSE(condition, error)                                                                   \
    do {                                                                                           \
        if (condition)                                                                             \
            return CUDA_ERROR_##error;                                                             \
    } while (0)

/* The same: the answer is that of the call if it fails. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        CUresult tried = (call);                                                                   \
        if (tried != CUDA_SUCCESS)                                                                 \
            return tried;                                                                          \
    } while (0)

static inline uint64_t round_up(uint64_t value, uint64_t power_of_two)
{
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

#endif
