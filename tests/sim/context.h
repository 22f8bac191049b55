/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts, primary and created. Their structs are never freed, so that the driver recognises a
 * stale handle. Driver lock. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "tests/sim/stream.h"

#define LIMITS_MAX 16

struct CUctx_st {
    _Atomic bool alive;
    bool primary;
    int device;
    unsigned uses; /* of a created one: cuCtxAttach counts up, cuCtxDetach down, and at 0 it ends */
    _Atomic uint64_t id; /* unique; a primary context gets a new one each time it comes to life */
    CUresult error;      /* sticky */
    unsigned pending;    /* unfinished work */
    CUstream legacy;
    CUstream streams;  /* all live streams, legacy among them */
    struct work *gate; /* all new work comes after it (cuCtxWaitEvent) */
    struct vector gate_clock;
    struct work *orphans; /* done when all work of destroyed streams is, or NULL */
    struct vector orphan_clock;
    uint32_t peers; /* bit d: access to memory of device d is enabled */
    size_t limits[LIMITS_MAX];
    uint64_t object_bytes; /* of what lives in it beside memory */
    bool launched;         /* it has memory for the local variables of kernels */
    struct block *blocks;  /* pages that small allocations share */
    CUcontext parent;      /* of a green context: the primary context */
    CUgreenCtx green;
    CUcontext next; /* in the list of live contexts */
};

CUcontext context_create(int device);
/* Brings the dead struct of a primary context to life. */
CUresult context_revive(CUcontext context);
/* Makes a dead struct for a primary context. */
CUcontext context_blank(int device);

/* Waits for the work of the context, then frees everything in it, but not VMM memory. */
void context_destroy(CUcontext context);

/* Takes device memory for an object of the context, and gives it back. The end of the context gives
 * back the rest. */
bool context_take(CUcontext context, uint64_t bytes);
void context_give(CUcontext context, uint64_t bytes);

/* CUDA_SUCCESS, INVALID_CONTEXT (NULL), CONTEXT_IS_DESTROYED, or the sticky error. */
CUresult context_usable(CUcontext context);

/* The driver gave out this handle at some time. Needs no lock. */
bool context_known(CUcontext context);
/* The context is alive and still the one with this id. */
bool context_is(CUcontext context, uint64_t id);

/* The first error sticks. */
void context_fail(CUcontext context, CUresult error);

/* Blocks until all work of the context is done. Records that the host knows. */
CUresult context_wait(CUcontext context);

/* The same for all contexts of the device. */
CUresult context_wait_device(int device);

/* Memory that is allocated while this context is current belongs to the returned one. */
static inline CUcontext context_owner(CUcontext context)
{
    return context->parent != NULL ? context->parent : context;
}

/* Calls `each` for all live contexts. */
void context_each(void (*each)(CUcontext context, void *data), void *data);

/* Returns work that is done when all work of the context is, with a reference; or NULL. Joins into
 * *clock what it covers. */
struct work *context_frontier(CUcontext context, struct vector *clock);

#endif
