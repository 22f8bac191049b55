/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See access.h.
 */
#include "shim/driver/access.h"

#include "shim/driver/call_scope.h"
#include "shim/driver/reservation.h"

#include <stdatomic.h>

static _Atomic uint64_t peers_of[DEVICES_MAX];

static CUmemAccessDesc access_of(CUdevice device, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = flags};
}

void access_set_peer(CUdevice owner, CUdevice peer, bool allowed)
{
    if (owner < 0 || owner >= DEVICES_MAX || peer < 0 || peer >= DEVICES_MAX)
        return;
    if (allowed)
        atomic_fetch_or(&peers_of[owner], UINT64_C(1) << peer);
    else
        atomic_fetch_and(&peers_of[owner], ~(UINT64_C(1) << peer));
}

uint64_t access_peers(CUdevice owner)
{
    return owner >= 0 && owner < DEVICES_MAX ? atomic_load(&peers_of[owner]) : 0;
}

/* An unmap may answer an error of other work, and have done its own or not. */
static void unmap_surely(CUdeviceptr addr, size_t size_bytes)
{
    for (int tries = 0; tries < 4 && real.cuMemUnmap(addr, size_bytes) != CUDA_SUCCESS; tries++)
        continue;
}

/* A defect of the driver (two H200, 580.159). Memory for GPUDirect RDMA is mapped twice, and the
 * first mapping is taken away, as a ghost is (pool/arena.h). From then on cuMemSetAccess gives
 * CUDA_ERROR_INVALID_VALUE for a device that has access to no mapping of that memory. While the
 * memory has one more mapping, anywhere, it succeeds, and the access stays. Memory that has just
 * been mapped needs that, too, if the ghost goes between cuMemMap and this call. */
static CUresult set_access_beside(uint64_t addr, uint64_t size_bytes, const CUmemAccessDesc *desc,
                                  size_t count)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr beside;
    if (!hooks_present(HOOK_cuMemRetainAllocationHandle) ||
        real.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)addr) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = reservation_create(&beside, size_bytes, 0);
    if (rc == CUDA_SUCCESS) {
        rc = real.cuMemMap(beside, size_bytes, 0, handle, 0);
        if (rc == CUDA_SUCCESS) {
            rc = real.cuMemSetAccess(addr, size_bytes, desc, count);
            unmap_surely(beside, size_bytes);
        }
        reservation_destroy(beside, size_bytes);
    }
    real.cuMemRelease(handle);
    return rc;
}

static CUresult set_access(uint64_t addr, uint64_t size_bytes, const CUmemAccessDesc *desc,
                           size_t count)
{
    CUresult rc = real.cuMemSetAccess(addr, size_bytes, desc, count);
    return rc == CUDA_ERROR_INVALID_VALUE ? set_access_beside(addr, size_bytes, desc, count) : rc;
}

CUresult access_allow(CUdevice device, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc[DEVICES_MAX + 1];
    size_t count = 0;
    uint64_t allowed = access_peers(device);
    for (int d = 0; d < DEVICES_MAX; d++)
        if (d != device && (allowed >> d & 1))
            desc[count++] = access_of(d, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc[count++] = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return set_access(addr, size_bytes, desc, count);
}

CUresult access_change(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc = access_of(peer, allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                   : CU_MEM_ACCESS_FLAGS_PROT_NONE);
    struct call_scope scope;
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = set_access(addr, size_bytes, &desc, 1);
    call_scope_end(&scope);
    return rc;
}
