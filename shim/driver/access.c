/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See access.h. The turn:
 * 1. On two H200 (580.159) the driver freed host memory twice, let running work fail with 719, or
 *    refused the access to some memory for good, where several threads mapped, unmapped and changed
 *    access at once and another device had access. One at a time, each order of these calls worked.
 * 2. So from the first grant on one thread at a time makes such a call. Without peers nobody waits.
 *    Who was in a call at the first grant is waited for by the walk that follows it, in the pools
 * of that device (pool/job.h).
 * 3. A turn is one call of the driver's, so each wait ends. It is bounded all the same, because the
 *    caller may be a signal handler in the thread that has the turn.
 */
#include "shim/driver/access.h"

#include "shim/driver/call_scope.h"

#include "pool/spin.h"
#include "shim/process/clock.h"

#include <stdatomic.h>

#define AWAIT_NS (2 * SEC_NS)

static _Atomic uint64_t peers_of[DEVICES_MAX];
static atomic_bool had_peers; /* some device, at some time */
static atomic_bool is_taken;  /* the turn */

bool access_begin_turn(void)
{
    if (!atomic_load(&had_peers))
        return false;
    uint64_t end_ns = clock_now_ns() + AWAIT_NS;
    for (unsigned turn = 0; atomic_exchange(&is_taken, true); turn++) {
        if (clock_now_ns() >= end_ns)
            return false;
        spin_pause(turn);
    }
    return true;
}

void access_end_turn(bool taken)
{
    if (taken)
        atomic_store(&is_taken, false);
}

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
        atomic_store(&had_peers, true);
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
    bool taken = access_begin_turn();
    uint64_t allowed = access_peers(device);
    for (int d = 0; d < DEVICES_MAX; d++)
        if (d != device && (allowed >> d & 1))
            desc[count++] = access_of(d, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc[count++] = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUresult rc = real.cuMemSetAccess(addr, size_bytes, desc, count);
    access_end_turn(taken);
    return rc;
}

CUresult access_map(uint64_t addr, uint64_t size_bytes, uint64_t handle)
{
    bool taken = access_begin_turn();
    CUresult rc = real.cuMemMap(addr, size_bytes, 0, handle, 0);
    access_end_turn(taken);
    return rc;
}

CUresult access_unmap(uint64_t addr, uint64_t size_bytes)
{
    bool taken = access_begin_turn();
    CUresult rc = real.cuMemUnmap(addr, size_bytes);
    access_end_turn(taken);
    return rc;
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
