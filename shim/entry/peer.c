/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of peer access. The driver answers first; what it allowed for its own
 * memory we then allow for mapped memory (shim/share/peer.h). No lock.
 */
#include "shim/share/peer.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/process/cancel.h"

#include <errno.h>

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult rc = retry_cuCtxEnablePeerAccess(peer, flags);
    if (rc != CUDA_SUCCESS || !hooks_init()) /* another thread may still fill the slots */
        return rc;
    int saved_errno = errno, cancel = cancel_forbid();
    struct retry_steps steps = {0};
    single_stream_disable();
    do
        rc = peer_grant(peer);
    while (retry_is_error(rc) && retry_note_error(rc) &&
           retry_release(devices_peers(peer), &steps));
    if (rc != CUDA_SUCCESS) { /* as natively: access to all of the peer's memory, or to none */
        peer_revoke(peer);
        real.cuCtxDisablePeerAccess(peer);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return rc;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUresult rc = real.cuCtxDisablePeerAccess(peer);
    if (rc == CUDA_SUCCESS) {
        int saved_errno = errno, cancel = cancel_forbid();
        peer_revoke(peer);
        cancel_allow(cancel);
        errno = saved_errno;
    }
    return rc;
}
