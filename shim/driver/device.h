/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver: one per context.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "pool/backend.h"
#include "shim/driver/access.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/hooks.h"

#include <stdatomic.h>

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

/* Runs work(arg) as a row runs: in the context (NULL: in whatever is current), in the relaxed capture mode,
 * unless the process leaves (false, and nothing was run). The caller's context, mode and errno are kept. */
bool device_visit(struct device_backend *d, void (*work)(void *arg), void *arg);

#endif
