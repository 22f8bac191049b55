/* SPDX-License-Identifier: BSD-2-Clause
 *
 * CUDA contexts and their pools. A record is made at the first allocation in a context and stays for
 * ever, so that it may be looked at without a lock; `handle` is NULL once its context is gone.
 */
#ifndef SHIM_CONTEXT_H
#define SHIM_CONTEXT_H

#include "pool/pool.h"
#include "shim/device.h"
#include "shim/report.h"

#include <stdatomic.h>

enum { CONTEXTS_MAX = 128 };

struct context {
    _Atomic(CUcontext) handle;
    struct pool *pool;     /* NULL: not pooled (green context, BACKING=driver, or it could not be) */
    CUdevice device;
    bool primary;
    const char *backing;   /* "arena", "segment", "driver" */
    const char *reason;    /* why that one */
    uint64_t redzone_bytes; /* behind each block (shim/redzone.h), 0: none */
    _Atomic(CUstream) redzone_stream;
    _Atomic size_t pitch_bytes; /* alignment of cuMemAllocPitch rows, 0: not known yet */
    char name[64];         /* of the device */
    struct pool_config config;
    struct device_backend backend;
};

/* The record of the calling thread's current context, made if there is none; NULL: no context is
 * current, or the library is off. Keeps errno. */
struct context *context_current(void);
/* The record of a context, if there is one. */
struct context *context_find(CUcontext ctx);

/* The record of a device's primary context, if there is one. */
struct context *context_primary(CUdevice device);
/* Every range committed in arenas of the device. */
void context_for_each_range(CUdevice device, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                            void *arg);

void context_for_each_pool(void (*f)(struct pool *p));
/* Work is about to be submitted: see pool_submit. */
void context_submit(uint64_t stream);
/* Gives idle memory back: of one device, or of all (-1). Returns the bytes. */
uint64_t context_trim(int device, const struct pool_trim *trim);
uint64_t context_tick(void);
/* The shortest of the pools' ticks, 0: none. */
uint64_t context_tick_ns(void);
uint64_t context_idle_bytes(int device);
size_t context_report(struct report_pool *out, size_t max);

/* A context made from a green context shares the memory of the primary one, but not its fences: what
 * is allocated there goes to the driver. */
void context_mark_green(CUcontext ctx);

#endif
