/* SPDX-License-Identifier: BSD-2-Clause */
/* Peer access between contexts of different devices. */
#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/thread.h"

static CUresult can_access(int *out, CUdevice device, CUdevice peer)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = device != peer && config.peers;
    return CUDA_SUCCESS;
}

static CUresult enable(CUcontext peer, unsigned flags, bool on)
{
    CUcontext context = thread_current();
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer == NULL || !context_known(peer) || !peer->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!config.peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = (uint32_t)1 << peer->device;
    bool was = context->peers & bit;
    if (on && was)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (!on && !was)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

API(cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer),
    can_access(out, device, peer))
API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), enable(peer, flags, true))
API(cuCtxDisablePeerAccess, (CUcontext peer), enable(peer, 0, false))
