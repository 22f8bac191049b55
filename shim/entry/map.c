/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions for memory that a program maps itself: memory of cuMemAlloc is none of it, nor is
 * address space that the program did not reserve. No lock.
 */
#include "shim/entry/answer.h"
#include "shim/driver/hooks.h"
#include "shim/driver/reservation.h"
#include "shim/process/state.h"

/* The driver refuses an address that is no device memory as it refuses memory of cuMemAlloc (measured, driver
 * 580). Of segments it is asked itself: they are its own such memory. */
static CUdeviceptr unless_ours(CUdeviceptr ptr, size_t size)
{
    static const char nowhere;
    return state_is_on() && reservation_covers(ptr, size) ? (CUdeviceptr)(uintptr_t)&nowhere : ptr;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    return answer_cuMemMap(unless_ours(ptr, size), size, offset, handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    return real.cuMemUnmap(unless_ours(ptr, size), size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    return answer_cuMemSetAccess(unless_ours(ptr, size), size, desc, count);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    return real.cuMemAddressFree(unless_ours(ptr, size), size);
}

/* For memory of cuMemCreate and of memory pools, as documented. */
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr ptr, size_t size,
                             unsigned long long flags)
{
    return answer_cuMulticastBindAddr(object, offset, unless_ours(ptr, size), size, flags);
}

#if CUDA_VERSION >= 13000
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t offset, CUdeviceptr ptr,
                                size_t size, unsigned long long flags)
{
    return answer_cuMulticastBindAddr_v2(object, dev, offset, unless_ours(ptr, size), size, flags);
}
#endif

/* The handle would be that of a chunk: its other blocks come with it, and where in it the block lies
 * nobody could tell, who takes what cuMemGetAddressRange says for the handle's range. So the answer is the
 * one for memory of cuMemAlloc: there is no handle. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    return real.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)unless_ours((CUdeviceptr)(uintptr_t)addr, 1));
}
