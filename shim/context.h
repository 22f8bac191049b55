/* SPDX-License-Identifier: BSD-2-Clause
 *
 * CUDA contexts and their pools. A record is made at the first allocation in a context and stays for
 * ever, so that it may be looked at without a lock; `handle` is NULL once its context is gone.
 */
#ifndef SHIM_CONTEXT_H
#define SHIM_CONTEXT_H

#include "pool/pool.h"
#include "shim/device.h"
#include "shim/hooks.h"
#include "shim/report.h"
#include "shim/state.h"

#include <stdatomic.h>

enum { CONTEXTS_MAX = 128 };

struct context {
    _Atomic(CUcontext) handle;
    _Atomic(CUcontext) quick_handle; /* the same while it is alive, then no context's */
    struct pool *pool;     /* NULL: not pooled (BACKING=driver, or it could not be) */
    CUdevice device;
    bool primary;
    atomic_bool ended;     /* for good: the record may make room for another */
    _Atomic int lost_code; /* the driver's error of everything in it from here on, CUDA_SUCCESS: none */
    const char *backing;   /* "arena", "segment", "driver" */
    const char *reason;    /* why that one */
    uint64_t redzone_bytes; /* behind each block (shim/redzone.h), 0: none */
    _Atomic(CUstream) redzone_stream;
    _Atomic size_t pitch_bytes; /* alignment of cuMemAllocPitch rows, 0: not known yet */
    char name[64];         /* of the device */
    struct pool_config config;
    struct device_backend backend;
};

/* The thread's latest; at first one that is no context's, and has no pool. */
extern __thread struct context *context_latest __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The pool of the calling thread's current context, if that is its latest and has one; NULL: ask
 * context_current. Never in a forked child. */
static inline struct pool *context_quick_pool(void)
{
    CUcontext ctx;
    if (__builtin_expect(real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS, 0))
        return NULL;
    const struct context *c = context_latest;
    return __builtin_expect(atomic_load_explicit(&c->quick_handle, memory_order_relaxed) == ctx, 1) ? c->pool : NULL;
}

/* The context ends, or after all it does not: it is not found meanwhile. */
void context_close(struct context *c);
void context_reopen(struct context *c, CUcontext ctx);
/* The only thread of a forked child has no context. */
void context_forget_thread(void);

/* The record of the calling thread's current context, made if there is none; of a green context, the
 * primary one's (shim/green.h). NULL: no context is current, or the library is off. Keeps errno. */
struct context *context_current(void);
/* The record of a context, if there is one. */
struct context *context_find(CUcontext ctx);
/* Does the calling thread's current context have a pool? Makes none. */
bool context_is_pooled(void);

/* The device's primary context if it is alive, else NULL. It is retained and released on the way: the
 * count comes out even. */
CUcontext context_primary_handle(CUdevice device);
/* The record of a device's primary context, if there is one. */
struct context *context_primary(CUdevice device);
/* Every range committed in arenas of the device. */
void context_for_each_range(CUdevice device, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                            void *arg);

/* Contexts with an arena on a device other than that one: up to max of them. Returns how many. */
size_t context_arenas_elsewhere(CUdevice device, CUcontext *ctx, CUdevice *owner, size_t max);

void context_for_each_pool(void (*f)(struct pool *p));
/* Work is about to be submitted: see pool_submit. */
void context_submit(uint64_t stream);
/* Gives idle memory back: of one device, or of all (-1). Returns the bytes. */
uint64_t context_trim(int device, const struct pool_trim *trim);
/* Gives idle memory of these devices (a bit for each) back because the driver is short of it: see pool_release. */
bool context_release(uint64_t devices, enum pool_release step);
/* Asks each context with a pool whether it is lost. The pool of one that is hands nothing out any more. */
void context_look_for_loss(void);
/* The error of a free of this address, in a lost context that has a live block there; CUDA_SUCCESS: none. */
CUresult context_loss_of(uint64_t addr);
extern atomic_bool context_any_lost __attribute__((visibility("hidden")));
static inline CUresult context_loss_at(uint64_t addr)
{
    bool any = atomic_load_explicit(&context_any_lost, memory_order_relaxed);
    return __builtin_expect(any, 0) ? context_loss_of(addr) : CUDA_SUCCESS;
}
uint64_t context_tick(void);
/* The shortest of the pools' ticks, 0: none. */
uint64_t context_tick_ns(void);
uint64_t context_idle_bytes(int device);
size_t context_report(struct report_pool *out, size_t max);

#endif
