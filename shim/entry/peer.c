/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of peer access. The driver answers first; what it allowed for its own
 * memory we then allow for mapped memory (shim/share/peer.h). Changes of pairs take
 * turns (step 6 of peer.c there). No lock is held over a driver call.
 */
#include "shim/share/peer.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/park/gate.h"
#include "shim/process/cancel.h"
#include "shim/process/state.h"

#include <errno.h>

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

/* The driver knows the access, and we do not: it was given past the wrappers. */
static bool is_missing(CUresult rc, CUcontext peer)
{
    return rc == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED && !peer_is_known(peer, false);
}

/* Access that is there already is told at once. Else the answer comes in the thread's turn, after
 * other threads' changes. A call outside a turn may give access all the same: another thread's
 * disable came first. Why each answer counts once:
 * 1. Turns change the pair and the driver's access. A call outside a turn can only give access.
 *    So between turns a known pair has access. Access without the pair is that of such a call.
 * 2. Such a call finds access. It tells of it if the pair is known after the call and nobody
 *    changes it: then the access is there at that moment, and whole. Else the thread asks again, in
 *    its turn.
 * 3. Such a call gives access. In its turn the thread asks again, and does not count this call.
 *    If there is no access, a disable has taken what was given. The thread undoes the second call,
 *    and the two leave the driver as it was. Calls outside turns that find access between the two
 *    find no known pair (step 2).
 * 4. If there is access, the thread makes it whole. A thread in an earlier turn that found it may
 *    have done so. An error leaves it open whether there is access: then the pair becomes known.
 * 5. So each success is one change of the driver's access, during the call that tells of it. */
static CUresult change(CUcontext peer, unsigned flags)
{
    bool was_known = peer_is_known(peer, true);
    CUresult first = was_known ? real.cuCtxEnablePeerAccess(peer, flags) : CUDA_SUCCESS;
    if (first == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? peer_is_known(peer, true) : first != 0)
        return first;
    bool begun = peer_begin_change(peer), gave = was_known && first == CUDA_SUCCESS;
    CUresult rc = real.cuCtxEnablePeerAccess(peer, flags);
    if (gave && rc == CUDA_SUCCESS) {
        real.cuCtxDisablePeerAccess(peer); /* step 3 */
    } else if (gave) {
        rc = peer_is_known(peer, false) ? CUDA_SUCCESS : grant_or_undo(peer); /* step 4 */
    } else if (rc == CUDA_SUCCESS) {
        rc = grant_or_undo(peer);
    } else if (is_missing(rc, peer)) {
        single_stream_disable();
        if (peer_grant(peer) != CUDA_SUCCESS)
            peer_revoke(peer); /* so the next call tries again */
    }
    peer_end_change(begun);
    return rc;
}

/* In a use. Whatever fails, the driver is there to undo its part. */
static CUresult enable(CUcontext peer, unsigned flags)
{
    /* Another thread may still fill the slots. In a forked child locks may be held for ever. */
    if (!hooks_init() || library_is_off())
        return real.cuCtxEnablePeerAccess(peer, flags);
    int saved_errno = errno, cancel = cancel_forbid();
    CUresult rc = change(peer, flags);
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

static CUresult disable(CUcontext peer)
{
    int saved_errno = errno, cancel = cancel_forbid();
    bool begun = peer_begin_change(peer);
    CUresult rc = real.cuCtxDisablePeerAccess(peer);
    if (rc == CUDA_SUCCESS)
        peer_revoke(peer);
    peer_end_change(begun);
    cancel_allow(cancel);
    errno = saved_errno;
    return rc;
}

/* A use, too: it changes the rights of mapped memory. */
CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    struct gate_use use;
    CUresult rc = gate_use_begin(&use);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = !hooks_init() || library_is_off() ? real.cuCtxDisablePeerAccess(peer) : disable(peer);
    gate_use_end(&use);
    return rc;
}
