/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See access.h.
 */
#include "shim/driver/access.h"

#include "shim/driver/call_scope.h"

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

CUresult access_allow(CUdevice device, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc[DEVICES_MAX + 1];
    size_t count = 0;
    uint64_t allowed = access_peers(device);
    for (int d = 0; d < DEVICES_MAX; d++)
        if (d != device && (allowed >> d & 1))
            desc[count++] = access_of(d, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc[count++] = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return real.cuMemSetAccess(addr, size_bytes, desc, count);
}

CUresult access_change(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc = access_of(peer, allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                   : CU_MEM_ACCESS_FLAGS_PROT_NONE);
    struct call_scope scope;
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = real.cuMemSetAccess(addr, size_bytes, &desc, 1);
    call_scope_end(&scope);
    return rc;
}
