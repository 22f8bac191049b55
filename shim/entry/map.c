/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions for memory that a program maps itself. The driver refuses them for memory
 * of cuMemAlloc, and for address space that the program did not reserve. Pool memory is mapped, so
 * we let the driver see another address there. No lock.
 */
#include "shim/driver/hide.h"
#include "shim/driver/hooks.h"
#include "shim/driver/reservation.h"
#include "shim/entry/retry.h"
#include "shim/process/state.h"
#include "shim/trace/beside.h"

/* Segments are memory of cuMemAlloc, so the driver gets their addresses. */
static CUdeviceptr hide_reserved(CUdeviceptr ptr, size_t size)
{
    return hide_pool_address(ptr, state_is_on() && reservation_covers(ptr, size));
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult rc = retry_cuMemMap(hide_reserved(ptr, size), size, offset, handle, flags);
    if (rc == CUDA_SUCCESS)
        TRACE_BESIDE(PASSED_MAP, size, .a = ptr, .b = handle);
    return rc;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    /* Before it, as for a free: the number of a handle may be another's at once. */
    TRACE_BESIDE(PASSED_UNMAP, 0, .a = ptr, .b = size);
    CUresult rc = real.cuMemUnmap(hide_reserved(ptr, size), size);
    if (rc != CUDA_SUCCESS)
        TRACE_BESIDE(FREE_FAILED, 0, .a = ptr, .b = (uint64_t)rc,
                     .caller = __builtin_return_address(0));
    return rc;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    return retry_cuMemSetAccess(hide_reserved(ptr, size), size, desc, count);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    return real.cuMemAddressFree(hide_reserved(ptr, size), size);
}

/* Takes memory of cuMemCreate and of memory pools (documented). */
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr ptr,
                             size_t size, unsigned long long flags)
{
    return retry_cuMulticastBindAddr(object, offset, hide_reserved(ptr, size), size, flags);
}

#if CUDA_VERSION >= 13000
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t offset,
                                CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    return retry_cuMulticastBindAddr_v2(object, dev, offset, hide_reserved(ptr, size), size, flags);
}
#endif

/* The handle would be a chunk's, with the chunk's other blocks. The program could not tell where in
 * the chunk its block lies: it takes the range of cuMemGetAddressRange for the handle's. So the
 * answer is the one for memory of cuMemAlloc: there is no handle. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUdeviceptr at = hide_reserved((CUdeviceptr)(uintptr_t)addr, 1);
    CUresult rc = real.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)at);
    if (rc == CUDA_SUCCESS)
        TRACE_BESIDE(PASSED_HOLD, 0, .a = *handle);
    return rc;
}
