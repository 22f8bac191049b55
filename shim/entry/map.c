/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions for memory that a program maps itself. The driver refuses them for memory
 * of cuMemAlloc, and for address space that the program did not reserve. Pool memory is mapped, so
 * we let the driver see another address there. No lock.
 */
#include "shim/driver/hooks.h"
#include "shim/driver/reservation.h"
#include "shim/entry/retry.h"
#include "shim/process/state.h"

/* The driver refuses an address that is no device memory in the same way as memory of cuMemAlloc
 * (measured, driver 580). Segments are memory of cuMemAlloc, so the driver gets their addresses. */
static CUdeviceptr unless_ours(CUdeviceptr ptr, size_t size)
{
    static const char nowhere;
    return state_is_on() && reservation_covers(ptr, size) ? (CUdeviceptr)(uintptr_t)&nowhere : ptr;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    return retry_cuMemMap(unless_ours(ptr, size), size, offset, handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    return real.cuMemUnmap(unless_ours(ptr, size), size);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    return retry_cuMemSetAccess(unless_ours(ptr, size), size, desc, count);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    return real.cuMemAddressFree(unless_ours(ptr, size), size);
}

/* Takes memory of cuMemCreate and of memory pools (documented). */
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr ptr,
                             size_t size, unsigned long long flags)
{
    return retry_cuMulticastBindAddr(object, offset, unless_ours(ptr, size), size, flags);
}

#if CUDA_VERSION >= 13000
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t offset,
                                CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    return retry_cuMulticastBindAddr_v2(object, dev, offset, unless_ours(ptr, size), size, flags);
}
#endif

/* The handle would be a chunk's, with the chunk's other blocks. The program could not tell where in
 * the chunk its block lies: it takes the range of cuMemGetAddressRange for the handle's. So the
 * answer is the one for memory of cuMemAlloc: there is no handle. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUdeviceptr at = unless_ours((CUdeviceptr)(uintptr_t)addr, 1);
    return real.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)at);
}
