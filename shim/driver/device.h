/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver: one per context.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "pool/backend.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/hooks.h"

#include <stdatomic.h>

enum { DEVICES_MAX = 64 };

struct device_backend {
    struct backend base; /* first: rows get its address */
    CUcontext ctx;
    CUdevice device;
    CUmemAllocationProp prop;
    _Atomic bool gone;           /* the context is being or has been destroyed */
    _Atomic bool context_events; /* cuCtxRecordEvent and cuCtxWaitEvent work (CUDA 12.5 and newer) */
    _Atomic(CUstream) freeing_stream; /* NULL: not made yet */
    _Atomic uint64_t numbers_drawn, numbers_done;
    struct device_fence fences[DEVICE_FENCES]; /* a handle is an index */
    _Atomic unsigned fence_count;
};

/* Fills *d, which must be all zero, for the calling thread's current context. */
void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream);

/* The same one for another context of its device, nothing of whose predecessor is in use any
 * more. */
void device_renew(struct device_backend *d, CUcontext ctx, bool single_stream);

/* Of a row's address, the backend that it belongs to. */
static inline struct device_backend *device_self(struct backend *b)
{
    return (struct device_backend *)(void *)b;
}

/* The device's primary context, alive or not, as a retain by the program gave it. NULL: no retain
 * was seen. */
CUcontext device_primary(CUdevice device);
void device_set_primary(CUdevice device, CUcontext primary);
/* Asks the driver. */
bool device_primary_is_active(CUdevice device);

/* A set of devices, one bit each. A device beyond DEVICES_MAX stands for all. */
static inline uint64_t device_set(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? UINT64_C(1) << device : UINT64_MAX;
}

/* Runs work(arg) as a row runs: in the context (NULL: in whatever is current), in the relaxed capture mode,
 * unless the process leaves (false, and nothing was run). The caller's context, mode and errno are kept. */
bool device_visit(struct device_backend *d, void (*work)(void *arg), void *arg);

/* Devices that may access the memory of `owner` besides itself: pools ask when they map memory. */
void device_peer_allow(CUdevice owner, CUdevice peer, bool allowed);
uint64_t device_peers(CUdevice owner); /* a bit for each */
/* Gives the device and those access to a mapped range. In a row, or what device_visit runs. */
CUresult device_allow(CUdevice device, uint64_t addr, uint64_t size_bytes);
/* Grants or takes the access of `peer` to a mapped range. Returns the driver's code. */
CUresult device_peer_range(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
