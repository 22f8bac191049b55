/* SPDX-License-Identifier: BSD-2-Clause
 *
 * CUDA contexts and their pools. A record is made at the first allocation in a context and stays a
 * record for ever, so that any thread may look at it without a lock. Its context is found by
 * `handle`. That is NULL while the record is being made, while its context may be ending, and once
 * the context has ended. Then record and pool serve the next context of the device. What stays for
 * good is one record for each context of a device that was alive at the same time (some 70 KiB),
 * and 768 bytes of the map for each 2 MiB of addresses that small blocks ever lay at.
 *
 * The lives of contexts. The library asks the driver whether a context has ended, and holds no
 * reference of its own: with one a primary context would end later than the program wants. Runtimes
 * retain the primary context by ways of their own, so a count of retains does not tell either. A
 * context is known to be primary (a retain was seen), known not to be (the primary one is another,
 * or not active), or may be. One that may be is looked at whenever the primary one may have ended.
 * 1. An ender is a thread in a call that may end a context, with context_destroy_begins or
 *    context_release_begins before it and context_end_finish after it. Before the call it takes the
 *    context's record out of what allocations find. After the call it asks the driver whether that
 *    very life is over: the context's id differs in each life, also where the handle is the same.
 *    So a context that was retained anew meanwhile has no memory of the last one's pool. Requests
 *    in between go to the driver.
 * 2. After the call the ender looks again for records that came meanwhile. A maker lists its
 *    record, then asks the driver whether the life is still the one that it made the record for,
 *    and only then lets it be found, unless an ender is at it. Of a maker and an ender one sees the
 *    other: either the ender's second look comes after the listing and finds the record, or the
 *    driver ended the context before the maker asked.
 * 3. The thread that finds a life over ends the record. Several may find it, one ends it.
 * 4. A thread asks the driver about a context only while no other thread destroys it: the handle of
 *    a created context may be invalid afterwards. That of a primary one never is.
 */
#ifndef SHIM_CONTEXT_H
#define SHIM_CONTEXT_H

#include "pool/pool.h"
#include "shim/driver/backend.h"
#include "shim/driver/hooks.h"
#include "shim/stats/report.h"
#include "shim/process/state.h"

#include <stdatomic.h>

enum { CONTEXTS_MAX = 128 };

enum context_state { CONTEXT_ENDED, CONTEXT_MAKING, CONTEXT_ALIVE, CONTEXT_ENDING };
enum context_primary { CONTEXT_CREATED, CONTEXT_MAYBE_PRIMARY, CONTEXT_PRIMARY };

struct context {
    _Atomic(CUcontext) handle;
    _Atomic(CUcontext) quick_handle; /* the same while it is found by it, else no context's */
    _Atomic(CUcontext) ctx; /* whose record it is, or was last */
    struct pool *pool;     /* NULL: not pooled (BACKING=driver, or it could not be) */
    CUdevice device;
    unsigned index;        /* in context_records */
    atomic_bool hidden;    /* not for what is done to all pools: made, destroyed, or ended by now */
    /* These belong to the lock of lives in context.c. */
    enum context_state state;
    enum context_primary primary;
    unsigned long long life; /* the context's id; 0: the driver knows none (before 12.0) */
    unsigned enders;       /* threads in a call that may end it */
    unsigned destroyers;   /* those that destroy a created one: no thread asks the driver then */
    unsigned askers;       /* threads that ask the driver about it, for whom a destroyer waits */
    bool condemned;        /* it ended while the record was being made */

    _Atomic int lost_code; /* the driver's error for everything in it from here on; 0: none */
    const char *backing;   /* "arena", "segment", "driver"; NULL: being made for the first time */
    const char *reason;    /* why that one */
    uint64_t redzone_bytes; /* behind each block (shim/context/redzone.h), 0: none */
    _Atomic(CUstream) redzone_stream;
    _Atomic size_t pitch_bytes; /* alignment of cuMemAllocPitch rows, 0: not known yet */
    char name[64];         /* of the device */
    struct pool_config config;
    struct device_backend backend;
};

/* All of them, never fewer. */
extern _Atomic(struct context *) context_records[CONTEXTS_MAX]
    __attribute__((visibility("hidden")));
extern atomic_int context_count __attribute__((visibility("hidden")));

#define FOR_EACH_RECORD(c)                                                                         \
    for (int i_ = 0, n_ = atomic_load_explicit(&context_count, memory_order_seq_cst); i_ < n_;     \
         i_++)                                                                                     \
        for (struct context *c = atomic_load_explicit(&context_records[i_], memory_order_acquire); \
             c; c = NULL)

/* Those that all pools are asked for. */
#define FOR_EACH_CONTEXT(c)                                                                        \
    FOR_EACH_RECORD(c)                                                                             \
        if (!atomic_load(&c->hidden) && c->pool)

/* The thread's latest; at first one that is no context's, and has no pool. */
extern __thread struct context *context_latest __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The pool of the calling thread's current context, if that is its latest and has one; NULL: ask
 * current_context. Never in a forked child. */
static inline struct pool *context_quick_pool(void)
{
    CUcontext ctx;
    if (__builtin_expect(real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS, 0))
        return NULL;
    const struct context *c = context_latest;
    return __builtin_expect(atomic_load_explicit(&c->quick_handle, memory_order_relaxed) == ctx, 1) ? c->pool : NULL;
}

/* What may end with a call of the program's. */
struct context_end {
    CUcontext ctx;           /* a created one; NULL: primary ones */
    CUdevice device;         /* of those; -1: any */
    unsigned long long life; /* of the created one */
    bool hides;
    uint64_t records[CONTEXTS_MAX / 64]; /* those withdrawn for this call, a bit for each index */
};

/* A created context (NULL: none) is about to be destroyed. */
void context_destroy_begins(struct context_end *e, CUcontext ctx);
/* Primary contexts of the device (-1: of any) are about to be reset, or to lose a user. */
void context_release_begins(struct context_end *e, CUdevice device, bool reset);
/* After the driver's answer (done: it succeeded), once for each record of context_records, of which
 * there may be more by now. True: the context's life is over, and the caller alone is to forget what
 * else the library keeps for the context (c->ctx) and then to call context_bury. */
bool context_end_judge(const struct context_end *e, struct context *c, bool done);
/* The pool goes, and the record is free for the next context of the device. */
void context_bury(struct context *c);
/* Was the record withdrawn when the call began? */
bool context_end_holds(const struct context_end *e, const struct context *c);
/* For a record that goes on: what is done to all pools is done to its pool again. True: it was not
 * so long. The caller tells the pool what it may have missed, then calls context_show. */
bool context_unhide(struct context *c);
/* Allocations find the record again, unless another ender is at it. */
void context_show(struct context *c);
/* A retain told which context is the device's primary one, and so which records are not of it. */
void context_set_primary(CUdevice device, CUcontext primary);

/* The steps of a maker, one thread at a time. A record for ctx: behind the others, or one that has
 * ended. An ender of ctx finds it from here on. NULL, false: no room, it serves still. */
struct context *context_add(CUcontext ctx, CUdevice device);
bool context_take_over(struct context *c, CUcontext ctx);
/* The record that was taken over does not suit ctx. */
void context_give_up(struct context *c);
/* The record is filled: allocations find it, if the life that it was made for goes on. False: they
 * do not. */
bool context_made(struct context *c, CUcontext ctx);
/* Is there a record for ctx that an ender withdrew? Requests go to the driver meanwhile. */
bool context_is_withdrawn(CUcontext ctx);

/* The driver serves it. It may be dead, but must be some thread's, or a primary one. */
bool context_is_alive(CUcontext ctx);
/* The id of the context's life, 0: the driver knows none. Asks the driver (see 4). */
unsigned long long context_life(CUcontext ctx);
/* Is that very life over? Asks the driver (see 4). */
bool context_is_over(CUcontext ctx, unsigned long long life, enum context_primary primary,
                     CUdevice device);
/* The calling thread's latest record; NULL: none. */
void context_remember(struct context *c);
/* The only thread of a forked child has no context. */
void context_forget_thread(void);

/* The record of a context, if allocations find it. */
struct context *context_find(CUcontext ctx);
/* Does the calling thread's current context have a pool? Makes none. */
bool context_is_pooled(void);
/* Does no other record have a pool in use? */
bool context_is_alone(const struct context *c);

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
/* Gives idle memory of these devices (a bit for each) back because the driver is short of it: see
 * pool_release. */
bool context_release(uint64_t devices, enum pool_release step);
/* From a true answer until context_asked: the driver may be asked about the record's context. Nobody destroys it, and
 * no other one has the record. False: it is ending. */
bool context_asks(struct context *c);
void context_asked(struct context *c);
/* Asks each context with a pool whether it is lost. The pool of one that is hands nothing out any more. */
void context_look_for_loss(void);
/* The error of a free of this address, in a lost context that has a live block there; CUDA_SUCCESS:
 * none. */
CUresult context_loss_of(uint64_t addr);
/* The error of a free of anything else: of the current context, if that is lost (measured on an H200). */
CUresult context_loss_here(void);
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
