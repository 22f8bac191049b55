/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver, as data: one for each context. device.c fills the table of
 * pool/backend.h with its functions and with those of device_fence.c.
 */
#ifndef SHIM_BACKEND_H
#define SHIM_BACKEND_H

#include "pool/backend.h"
#include "shim/driver/hooks.h"

#include <stdatomic.h>

enum { DEVICES_MAX = 64, BACKENDS_MAX = 128, DEVICE_FENCES = 512 };

/* Turns of spin.h that a thread waits for the end of a context: some 2 s. The driver takes some
 * 100 ms to end one, and longer while it waits for work. The wait has a limit because that work may
 * be a host function of the program that waits for the waiting thread. Before a release, which
 * seldom ends a context: some 5 ms. */
enum { CONTEXT_AWAIT_TURNS = 20000, RELEASE_AWAIT_TURNS = 100 };

/* A fence is a context event, or a number if the driver has no such events or fails to record one.
 * The work before a number is done once a synchronisation of the context has ended that began after
 * the number was drawn. */
struct device_fence {
    CUevent event;
    _Atomic uint64_t number; /* 0: the event counts */
};

struct device_backend {
    struct backend base; /* first: rows get its address */
    CUcontext ctx;
    CUdevice device;
    unsigned number; /* of the context, in traces */
    CUmemAllocationProp prop;
    _Atomic bool context_events;      /* cuCtxRecordEvent and cuCtxWaitEvent work (CUDA 12.5) */
    _Atomic bool has_frees_beside;    /* the driver has frees in stream order */
    _Atomic(CUstream) freeing_stream; /* NULL: not made yet */
    _Atomic uint64_t numbers_drawn, numbers_done;
    struct device_fence fences[DEVICE_FENCES]; /* a handle is an index */
    _Atomic unsigned fence_count;
    _Atomic(CUevent) spare_event; /* for the first fence, if no other event can be made */
    _Atomic unsigned visits;      /* Note [Visits] in device_fence.h */
    _Atomic unsigned segment_frees, waiting_frees; /* Note [Frees of segments] in device.h */
    _Atomic unsigned enders; /* threads in a call that may end the context; context.c */
    _Atomic int destruction; /* enum destruction */
};

/* Of a created context; what ends a primary context begins none. It is over of a context that has
 * ended, and while the record has none. */
enum destruction { DESTRUCTION_NONE, DESTRUCTION_BEGUN, DESTRUCTION_OVER };

/* Of a row's address, the backend that it belongs to. */
static inline struct device_backend *device_self(struct backend *b)
{
    return (struct device_backend *)(void *)b;
}

/* The device's bit in a set of devices; all bits for one that a set cannot name. */
static inline uint64_t device_bit(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? UINT64_C(1) << device : UINT64_MAX;
}

#endif
