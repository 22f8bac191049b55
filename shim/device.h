/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver: one per context.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "pool/backend.h"
#include "shim/hooks.h"

#include <stdatomic.h>

enum { DEVICES_MAX = 64, SOFT_FENCES = 512 };

struct device_backend {
    struct backend base; /* first: rows get its address */
    CUcontext ctx;
    CUdevice device;
    CUmemAllocationProp prop;
    _Atomic bool gone;   /* the context is being or has been destroyed */
    bool context_events; /* cuCtxRecordEvent and cuCtxWaitEvent, since CUDA 12.5 */
    /* Without them a fence is a number: everything up to it is done once the context was synchronised
     * after it was drawn. */
    _Atomic uint64_t soft_drawn, soft_done;
    _Atomic uint64_t soft[SOFT_FENCES];
    _Atomic unsigned soft_count;
};

/* Fills *d for the calling thread's current context. */
void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream);

/* Devices that may access the memory of `owner` besides itself: pools ask when they map memory. */
void device_peer_allow(CUdevice owner, CUdevice peer, bool allowed);
/* Grants or takes the access of `peer` to a mapped range. */
void device_peer_range(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
