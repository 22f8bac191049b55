/* SPDX-License-Identifier: BSD-2-Clause */
/* Peer access between contexts of different devices. */
#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/thread.h"

static CUresult enable(CUcontext peer, bool on)
{
    CUcontext context = thread_current();
    REFUSE(peer == NULL || !context_known(peer) || !peer->alive, INVALID_CONTEXT);
    REFUSE(peer->device == context->device, INVALID_DEVICE);
    REFUSE(!config.peers, PEER_ACCESS_UNSUPPORTED);
    uint32_t bit = (uint32_t)1 << peer->device;
    bool was = context->peers & bit;
    REFUSE(on && was, PEER_ACCESS_ALREADY_ENABLED);
    REFUSE(!on && !was, PEER_ACCESS_NOT_ENABLED);
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

API(cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer),
    NEEDS(out != NULL, INVALID_VALUE) NEEDS_DEVICE(device) NEEDS_DEVICE(peer)
        GIVE(out, device != peer && config.peers))
API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags),
    NEEDS(flags == 0, INVALID_VALUE) enable(peer, true))
API(cuCtxDisablePeerAccess, (CUcontext peer), enable(peer, false))
