/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of peer access. The driver answers first; what it allowed for its own
 * memory we then allow for mapped memory (shim/share/peer.h). No lock.
 */
#include "shim/share/peer.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/park/gate.h"
#include "shim/process/cancel.h"

#include <errno.h>

/* In a use. Whatever fails, the driver is there to undo its part. */
static CUresult enable(CUcontext peer, unsigned flags)
{
    CUresult rc = real.cuCtxEnablePeerAccess(peer, flags);
    if (rc != CUDA_SUCCESS || !hooks_init()) /* another thread may still fill the slots */
        return rc;
    int saved_errno = errno, cancel = cancel_forbid();
    single_stream_disable();
    rc = peer_grant(peer);
    if (rc != CUDA_SUCCESS) { /* as natively: access to all of the peer's memory, or to none */
        peer_revoke(peer);
        real.cuCtxDisablePeerAccess(peer);
    }
    cancel_allow(cancel);
    errno = saved_errno;
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
