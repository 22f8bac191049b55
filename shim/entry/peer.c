/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of peer access. The driver answers first; what it allowed for its own
 * memory we then allow for mapped memory (shim/share/peer.h). No lock.
 */
#include "shim/share/peer.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/park/gate.h"
#include "shim/process/cancel.h"

#include <errno.h>
#include <stdatomic.h>

/* Threads that may have the driver's part, and are about to give ours, or to undo both. */
static atomic_uint at_work;

/* After a success the thread counts as at work. The driver may know access that another thread
 * still works on. Then it is asked again once no other thread is at work: by then the access is
 * there, or none is. The wait is bounded, as the caller may be a signal handler in such a thread.
 */
static CUresult enable_in_driver(CUcontext peer, unsigned flags)
{
    for (unsigned turn = 0;; turn++) {
        atomic_fetch_add(&at_work, 1);
        CUresult rc = real.cuCtxEnablePeerAccess(peer, flags);
        if (rc == CUDA_SUCCESS)
            return rc;
        bool is_alone = atomic_fetch_sub(&at_work, 1) == 1;
        if (rc != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED || is_alone || turn == CONTEXT_AWAIT_TURNS)
            return rc;
        spin_pause(turn);
    }
}

/* The part for mapped memory. As natively: access to all of the peer's memory, or to none. */
static CUresult grant_or_undo(CUcontext peer)
{
    single_stream_disable();
    CUresult rc = peer_grant(peer);
    if (rc != CUDA_SUCCESS) {
        peer_revoke(peer);
        real.cuCtxDisablePeerAccess(peer);
    }
    return rc;
}

/* In a use. Whatever fails, the driver is there to undo its part. */
static CUresult enable(CUcontext peer, unsigned flags)
{
    int cancel = cancel_forbid();
    CUresult rc = enable_in_driver(peer, flags);
    if (rc == CUDA_SUCCESS) {
        int saved_errno = errno;
        rc = hooks_init() ? grant_or_undo(peer) : rc; /* another thread may still fill the slots */
        atomic_fetch_sub(&at_work, 1);
        errno = saved_errno;
    }
    cancel_allow(cancel);
    return rc;
}

/* A use: work that reaches pool memory follows. No mark is held while memory goes back. */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    struct retry_steps steps = {0};
    CUresult rc;
    do {
        struct gate_use use;
        rc = gate_use_begin(&use);
        if (rc != CUDA_SUCCESS)
            return rc;
        rc = enable(peer, flags);
        gate_use_end(&use);
    } while (retry_is_error(rc) && retry_note_error(rc) &&
             retry_release(devices_peers(peer), &steps));
    return rc;
}

/* A use, too: it changes the rights of mapped memory. */
CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    struct gate_use use;
    CUresult rc = gate_use_begin(&use);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = real.cuCtxDisablePeerAccess(peer);
    if (rc == CUDA_SUCCESS) {
        int saved_errno = errno, cancel = cancel_forbid();
        peer_revoke(peer);
        cancel_allow(cancel);
        errno = saved_errno;
    }
    gate_use_end(&use);
    return rc;
}
