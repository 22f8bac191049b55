/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See peer.h. Access is granted to the current context, to memory of the peer context: the driver does so
 * for its own allocations, we do it for what is mapped in the arenas of the peer's device, from the first
 * pair of contexts on two devices to the last. The table has a lock, never held over a driver call.
 */
#include "shim/share/peer.h"

#include "pool/pool.h"
#include "shim/entry/answer.h"
#include "shim/process/cancel.h"
#include "shim/context/context.h"
#include "shim/driver/device.h"
#include "shim/share/ipc.h"
#include "shim/process/state.h"
#include "shim/context/stream.h"

#include <errno.h>
#include <pthread.h>

enum { GRANTS_MAX = 512, TRIES = 4, MEND_MAX = 64 };

struct side {
    CUcontext ctx;
    CUdevice device;
};

static struct grant {
    struct side accessor, owner;
    bool used;
} grants[GRANTS_MAX];
static bool overflowed; /* a pair is not in the table: nothing is taken away any more */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct peer_change {
    CUdevice peer;
    bool allowed;
    CUresult rc; /* the first failure's */
};

static void change_range(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct peer_change *change = arg;
    CUresult rc = device_peer_range(change->peer, change->allowed, addr, size_bytes);
    if (change->rc == CUDA_SUCCESS)
        change->rc = rc;
}

/* Memory of another process that was opened there may be a third device's, which need not be this one's peer. Natively
 * copies reach what was opened on another device, kernels never do, with access of peers either (700, measured): here
 * copies have to have access, and kernels with it. */
static void change_import(void *arg, uint64_t addr, uint64_t size_bytes)
{
    const struct peer_change *change = arg;
    device_peer_range(change->peer, change->allowed, addr, size_bytes);
}

/* Memory that is committed meanwhile is made by rows that know the new rights. A range may have been given
 * back on the way, whose failure means nothing: what is there then is walked again. */
static CUresult change_devices(CUdevice owner, CUdevice accessor, bool allowed)
{
    struct peer_change change = {accessor, allowed, CUDA_SUCCESS};
    device_peer_allow(owner, accessor, allowed);
    for (int tries = 0; tries < TRIES; tries++) {
        change.rc = CUDA_SUCCESS;
        context_for_each_range(owner, change_range, &change);
        if (change.rc == CUDA_SUCCESS)
            break;
    }
    ipc_for_each_range(owner, change_import, &change);
    return change.rc;
}

static bool any_left(CUdevice owner, CUdevice accessor)
{
    if (overflowed)
        return true;
    for (struct grant *g = grants; g < grants + GRANTS_MAX; g++)
        if (g->used && g->owner.device == owner && g->accessor.device == accessor)
            return true;
    return false;
}

static CUresult add(const struct side *accessor, const struct side *owner)
{
    struct grant *free_row = NULL, *g;
    pthread_mutex_lock(&lock);
    for (g = grants; g < grants + GRANTS_MAX; g++) {
        if (g->used && g->accessor.ctx == accessor->ctx && g->owner.ctx == owner->ctx)
            break;
        if (!g->used && !free_row)
            free_row = g;
    }
    if (g == grants + GRANTS_MAX && free_row)
        *free_row = (struct grant){*accessor, *owner, true};
    else if (g == grants + GRANTS_MAX)
        overflowed = true;
    pthread_mutex_unlock(&lock);
    return change_devices(owner->device, accessor->device, true);
}

/* Takes the rows away that match; either side may be NULL: any context. */
static void take_away(CUcontext accessor, CUcontext owner)
{
    for (;;) {
        struct grant gone = {.used = false};
        bool last = false;
        pthread_mutex_lock(&lock);
        for (struct grant *g = grants; g < grants + GRANTS_MAX && !gone.used; g++)
            if (g->used && (!accessor || g->accessor.ctx == accessor) &&
                (!owner || g->owner.ctx == owner)) {
                gone = *g;
                g->used = false;
                last = !any_left(gone.owner.device, gone.accessor.device);
            }
        pthread_mutex_unlock(&lock);
        if (!gone.used)
            return;
        if (last)
            change_devices(gone.owner.device, gone.accessor.device, false);
    }
}

void peer_forget(CUcontext ctx)
{
    if (ctx) {
        take_away(ctx, NULL);
        take_away(NULL, ctx);
    }
}

/* The current context, and the peer. False: they are of one device, where access is nobody's question. */
static bool find_sides(CUcontext peer, struct side *accessor, struct side *owner)
{
    CUcontext ignored;
    owner->ctx = peer;
    if (real.cuCtxGetCurrent(&accessor->ctx) != CUDA_SUCCESS ||
        real.cuCtxGetDevice(&accessor->device) != CUDA_SUCCESS ||
        real.cuCtxPushCurrent_v2(peer) != CUDA_SUCCESS)
        return false;
    CUresult rc = real.cuCtxGetDevice(&owner->device);
    real.cuCtxPopCurrent_v2(&ignored);
    return rc == CUDA_SUCCESS && owner->device != accessor->device;
}

static bool is_granted(CUcontext accessor, CUcontext owner)
{
    pthread_mutex_lock(&lock);
    bool granted = overflowed; /* not to be known any more: it is not tried again and again */
    for (struct grant *g = grants; g < grants + GRANTS_MAX && !granted; g++)
        granted = g->used && g->accessor.ctx == accessor && g->owner.ctx == owner;
    pthread_mutex_unlock(&lock);
    return granted;
}

bool peer_mend(void)
{
    CUcontext owners[MEND_MAX];
    CUdevice devices[MEND_MAX];
    struct side accessor;
    int saved_errno = errno, cancel = cancel_forbid();
    size_t count = 0, granted = 0;
    if (state_is_on() && real.cuCtxGetCurrent(&accessor.ctx) == CUDA_SUCCESS && accessor.ctx &&
        real.cuCtxGetDevice(&accessor.device) == CUDA_SUCCESS) {
        count = context_arenas_elsewhere(accessor.device, owners, devices, MEND_MAX);
        count += ipc_imports_elsewhere(accessor.device, owners + count, devices + count, MEND_MAX - count);
    }
    for (size_t i = 0; i < count; i++) {
        struct side owner = {owners[i], devices[i]};
        if (is_granted(accessor.ctx, owner.ctx))
            continue;
        stream_give_up(); /* as for access that the program asks for */
        if (add(&accessor, &owner) == CUDA_SUCCESS)
            granted++;
        else
            take_away(accessor.ctx, owner.ctx);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return granted > 0;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult rc = answer_cuCtxEnablePeerAccess(peer, flags);
    if (rc == CUDA_SUCCESS) {
        int saved_errno = errno, cancel = cancel_forbid();
        struct side accessor, owner;
        stream_give_up();
        if (find_sides(peer, &accessor, &owner)) {
            unsigned step = 0;
            do
                rc = add(&accessor, &owner);
            while (answer_tells(rc) && answer_note(rc) &&
                   answer_release(answer_peers(peer), &step));
        }
        if (rc != CUDA_SUCCESS) { /* as natively: all of the peer's memory, or none */
            take_away(accessor.ctx, peer);
            real.cuCtxDisablePeerAccess(peer);
        }
        cancel_allow(cancel);
        errno = saved_errno;
    }
    return rc;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUresult rc = real.cuCtxDisablePeerAccess(peer);
    if (rc == CUDA_SUCCESS) {
        int saved_errno = errno, cancel = cancel_forbid();
        CUcontext accessor = NULL;
        if (real.cuCtxGetCurrent(&accessor) == CUDA_SUCCESS && accessor)
            take_away(accessor, peer);
        cancel_allow(cancel);
        errno = saved_errno;
    }
    return rc;
}
