/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room context/: CUDA contexts, their pools, and the streams that work is submitted to. It
 * includes nothing of control/, share/, entry/ or route/. Its one seam is this header: the record
 * of a context, and the functions for all pools. The wrappers also tell it of streams, green
 * contexts and red zones (stream_watch.h, green_context.h, redzone.h).
 *
 * A thread makes a record at the first allocation in a context. Records are never freed, so any
 * thread may read one without a lock. `handle` leads to the record. It is NULL while a thread makes
 * the record, while a thread may be ending the context, and after the context has ended. Then the
 * next context of the device gets the record and its pool. So a device has as many records as it
 * ever had contexts at the same time, of some 70 KiB each. They remain for the life of the process.
 * So do 768 bytes of the map for each 2 MiB of addresses that ever held small blocks.
 *
 * When a context has ended, and why its pool's memory reaches no later one: Note [Lives of
 * contexts] in README.md. The functions below name its steps.
 */
#ifndef SHIM_CONTEXT_H
#define SHIM_CONTEXT_H

#include "pool/pool.h"
#include "shim/driver/backend.h"
#include "shim/driver/device.h"
#include "shim/driver/hooks.h"
#include "shim/stats/report.h"

#include <stdatomic.h>

enum { CONTEXTS_MAX = BACKENDS_MAX, REPORT_ROWS_MAX = CONTEXTS_MAX + DEVICES_MAX };

enum context_state { CONTEXT_ENDED, CONTEXT_MAKING, CONTEXT_ALIVE, CONTEXT_ENDING };
enum context_primary { CONTEXT_CREATED, CONTEXT_MAYBE_PRIMARY, CONTEXT_PRIMARY };

struct context {
    _Atomic(CUcontext) handle;      /* NULL while allocations do not find the record */
    _Atomic(CUcontext) fast_handle; /* for the fast path: while handle is NULL, the record's own
                                      address, which equals no context */
    atomic_uint withdrawals;        /* how often `handle` has become NULL */
    _Atomic(CUcontext) ctx;         /* the context that has the record, or had it last */
    struct pool *pool; /* NULL: not pooled (BACKING=driver, or there was no host memory) */
    CUdevice device;
    unsigned index;     /* in context_records */
    atomic_bool hidden; /* calls for all pools skip it: being made or reset, or ended */
    /* The lock of lives in context.c protects these. */
    enum context_state state;
    enum context_primary primary;
    unsigned long long life; /* the context's id; 0: the driver knows none (before 12.0) */
    unsigned destroyers;     /* enders that name the context: no thread asks the driver about it */
    unsigned askers;         /* threads that ask the driver about it; a destroyer waits for them */
    bool condemned;          /* the context ended while the record was being made */
    bool doubted;            /* it may have ended, and the last destroyer asks the driver */

    _Atomic int lost_code;  /* the driver's lasting error for the context; 0: none */
    atomic_bool filled;     /* from here on backing, reason, name, uuid and pool stay as they are */
    const char *backing;    /* "arena", "segment", "driver" */
    const char *reason;     /* why that backing */
    uint64_t redzone_bytes; /* behind each block (shim/context/redzone.h), 0: none */
    _Atomic(CUstream) redzone_stream;
    _Atomic size_t pitch_bytes; /* alignment of cuMemAllocPitch rows, 0: not known yet */
    char name[64];              /* of the device */
    struct device_uuid uuid;    /* the same */
    /* Memory lent to other processes (shim/share/lend.h), CLOCK_MONOTONIC, 0: never. The control
     * thread writes them. */
    _Atomic uint64_t returned_ns, regrown_ns;
    uint64_t lent_growths; /* num_device_alloc then */
    struct pool_config config;
    struct device_backend backend;
};

/* All records. The count never falls. */
extern _Atomic(struct context *) context_records[CONTEXTS_MAX]
    __attribute__((visibility("hidden")));
extern atomic_int context_count __attribute__((visibility("hidden")));

#define FOR_EACH_RECORD(c)                                                                         \
    for (int i_ = 0, n_ = atomic_load_explicit(&context_count, memory_order_seq_cst); i_ < n_;     \
         i_++)                                                                                     \
        for (struct context *c = atomic_load_explicit(&context_records[i_], memory_order_acquire); \
             c; c = NULL)

/* The records that a call for all pools reaches. */
#define FOR_EACH_CONTEXT(c)                                                                        \
    FOR_EACH_RECORD(c)                                                                             \
        if (!atomic_load(&c->hidden) && c->pool)

/* The devices of a set (device_bit). */
#define FOR_EACH_DEVICE(i, devices)                                                                \
    for (uint64_t left_ = (devices); left_; left_ = 0)                                             \
        for (CUdevice i = 0; i < DEVICES_MAX; i++)                                                 \
            if (left_ & device_bit(i))

/* The thread's latest record; at first one without context and pool. */
extern __thread struct context *context_latest
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The pool of the calling thread's current context, if its latest record is that context's. NULL:
 * it is not, or there is no pool; ask current_context (shim/entry/current.h). A forked child must
 * not call it. */
static inline struct pool *context_quick_pool(void)
{
    CUcontext ctx;
    if (__builtin_expect(real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS, 0))
        return NULL;
    const struct context *c = context_latest;
    CUcontext quick = atomic_load_explicit(&c->fast_handle, memory_order_relaxed);
    return __builtin_expect(quick == ctx, 1) ? c->pool : NULL;
}

/* The record of a context, if allocations find it. */
struct context *context_find(CUcontext ctx);
/* Does the calling thread's current context have a pool? Makes none. */
bool context_is_pooled(void);
/* Is there no pool but this record's that calls for all pools reach? */
bool context_is_alone(const struct context *c);
/* Sets the calling thread's latest record. NULL: none. */
void context_remember(struct context *c);
/* In a forked child: its only thread has no context. */
void context_forget_thread(void);

/* Does the driver serve the context? The context may be dead, but must be some thread's current
 * one, or a primary one. */
bool context_is_alive(CUcontext ctx);
/* The id of the context's life; 0: the driver knows none. Asks the driver (see 4). */
unsigned long long context_life(CUcontext ctx);
/* Is that very life over? Asks the driver (see 4). */
bool context_is_over(CUcontext ctx, unsigned long long life, enum context_primary primary,
                     CUdevice device);
/* Is it the device's primary context? Asks the driver if no retain was seen. */
enum context_primary context_kind(CUcontext ctx, CUdevice device);

/* The contexts that one call of the program may end. */
struct context_end {
    CUcontext ctx;                       /* a created context; NULL: primary contexts */
    CUdevice device;                     /* of the primary contexts; -1: any */
    bool created;                        /* if ctx is NULL: created contexts are asked about, too */
    unsigned long long life;             /* of the created context */
    bool hides;                          /* calls for all pools skip the records meanwhile */
    bool begun;                          /* context_end_over lowers what the beginning has raised */
    bool holds_begin;                    /* .. and what context_life_begins waits for */
    unsigned row;                        /* in end_rows.c; 0: none */
    uint64_t records[CONTEXTS_MAX / 64]; /* a bit for the index of each record withdrawn */
    uint64_t late[CONTEXTS_MAX / 64];    /* those made since the call began */
};

/* The steps of an ender, in this order. The program is about to destroy a created context (NULL:
 * none), or to give up its last use. Waits until no thread asks the driver about it, and until no
 * thread uses its events. */
void context_destroy_begins(struct context_end *e, CUcontext ctx);
/* The program is about to reset the primary contexts of the device (-1: any), or to release one of
 * their users. */
void context_release_begins(struct context_end *e, CUdevice device, bool reset);
/* The driver has answered. Records made from now on are none of this end's: step 2 of Note [Ends
 * under way]. */
void context_end_returned(struct context_end *e);
/* After that (done: the call succeeded), once for each record, new ones included.
 * True: the life is over. Then the caller alone forgets what else the library keeps for c->ctx, and
 * calls context_abandon. May ask the driver. */
bool context_end_judge(const struct context_end *e, struct context *c, bool done);
/* The last step, if there was a first one. */
void context_end_over(struct context_end *e);
/* Is the calling thread between the first step and the last one? */
bool context_ends_here(void);
/* Makes the context known to the trace, with what its pool holds already. context_trace_all: each
 * context, when a trace begins. */
void context_trace(struct context *c, bool held);
void context_trace_all(void);
/* Records how much of each GPU is free. Asks the driver, which waits for no work then. */
void context_trace_gpus(void);
/* Tells a dump (shim/trace/dump.h) what each pool holds, and the blocks that are live. */
void context_dump_all(void);
/* Abandons the pool. The next context of the device may have the record. */
void context_abandon(struct context *c);
/* Did the call withdraw the record when it began? */
bool context_end_holds(const struct context_end *e, const struct context *c);
/* For a record whose life goes on: calls for all pools reach it again. True: they skipped it until
 * now. Then the caller tells the pool what it may have missed, and calls context_show. */
bool context_unhide(struct context *c);
/* Allocations find the record again, unless another ender holds it. */
void context_show(struct context *c);
/* A retain showed which context is the device's primary one. */
void context_set_primary(CUdevice device, CUcontext primary);

/* The steps of a maker, for one thread at a time. From here on an ender of ctx finds the record.
 * Adds a record, all zero but for the context. NULL: CONTEXTS_MAX records are in use, or there is
 * no host memory. */
struct context *context_add(CUcontext ctx, CUdevice device);
/* Gives ctx a record of its device whose context has ended. False: the record is in use. */
bool context_reuse(struct context *c, CUcontext ctx);
/* Undoes context_reuse. */
void context_retire(struct context *c);
/* The maker has filled the record. True: allocations find it. False: the life is over, or an ender
 * holds the record. */
bool context_made(struct context *c, CUcontext ctx);
/* The calling thread is about to begin a life of the device's primary context (see 5). Waits for
 * enders. False: nothing was counted. Else context_life_begun follows. */
bool context_life_begins(CUdevice device);
void context_life_begun(CUdevice device);
/* Does an ender hold a record of ctx? Requests go to the driver meanwhile. */
bool context_is_withdrawn(CUcontext ctx);

/* True: the driver may be asked about the record's context until context_unpin. Till then no thread
 * destroys the context, and no other context gets the record. False: the context is ending. */
bool context_pin(struct context *c);
void context_unpin(struct context *c);

/* The functions below work on all pools. They take no lock but that of context_set_config.
 *
 * Calls f for each range committed in arenas of the device. */
void context_for_each_range(CUdevice device,
                            void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg);
/* The devices with an arena, a bit for each. */
uint64_t context_arena_devices(void);
void context_for_each_pool(void (*f)(struct pool *p));
/* Work is about to be submitted: see pool_submit. */
void context_submit(uint64_t stream);
/* Gives idle memory back, of one device or of all (-1): that of the pools, then that of the
 * driver's own (shim/driver/async_pool.h). The driver's keep what ours left of keep_bytes. Returns
 * the bytes. context_release and context_tick have the driver's own too. */
uint64_t context_trim(int device, const struct pool_trim *trim);
/* The devices where they have the driver's own: those of records, with a pool or without one, and
 * those that async_pool_devices knows. */
uint64_t context_async_devices(void);
/* The one of these that has the UUID (device_uuid); -1: none. */
CUdevice context_find_device(const char *uuid);
/* pool_settle and pool_has_settled of the same pools. */
struct context_marks {
    uint64_t of[CONTEXTS_MAX]; /* by index; 0: none */
};
void context_settle(int device, struct context_marks *marks);
bool context_has_settled(const struct context_marks *marks);
/* The driver is short of memory on these devices (a bit for each): see pool_release. True: some
 * memory went back. */
bool context_release(uint64_t devices, enum pool_release step);
/* The record's pool, or all pools that calls reach, take the options that are in force now
 * (pool_set_config). */
void context_set_config(struct context *c);
void context_set_configs(void);
/* Does what limits and timeouts ask for now, of all devices. Returns the bytes that went back;
 * *expired_bytes: those of them that IDLE_TIMEOUT asked for. */
uint64_t context_tick(uint64_t *expired_bytes);
/* The shortest of the ticks that the limits of all pools, the driver's too, ask for; 0: none. */
uint64_t context_tick_ns(void);
uint64_t context_idle_bytes(int device);
/* Device memory of the pools and of the driver's own pools (shim/driver/async_pool.h). */
uint64_t context_held_bytes(CUdevice device);
/* See pool_away_bytes. device -1: of all. Takes no lock. */
uint64_t context_away_bytes(int device);
/* See pool_behind_work_bytes. */
uint64_t context_behind_work_bytes(int device);
/* Fills at most max rows, for the pools of ended contexts too. Behind them come devices that have
 * memory in the driver's own pools only, or had some, until a context there has a record. There are
 * at most REPORT_ROWS_MAX. With room for these, no device's row goes and no counter of it falls.
 * Returns how many. */
size_t context_report(struct report_pool *out, size_t max);
/* Would context_report return? See pool_can_tell. */
bool context_can_report(void);

/* pool_lookup. When a context ends, the driver may give its segments to others before its pool has
 * forgotten them. So this waits where the address is of a context that may be ending: until the
 * pool has forgotten it or the context goes on. It waits some 2 s at most, and not at all in the
 * thread that ends a context: in a signal handler, or in a profiler's callback. No lock held. */
enum pool_status context_lookup(uint64_t addr, struct pool_block *block);
/* pool_expose, recorded. */
enum pool_status context_expose(uint64_t addr);

/* Asks the driver about each context with a pool. The pool of a lost context serves no allocation
 * any more. */
void context_look_for_loss(void);
/* The error of a free of an address where a lost context has a live block. CUDA_SUCCESS: there is
 * no such block. */
CUresult context_loss_of(uint64_t addr);
/* The error of any other free: that of the current context, if it is lost (measured on an H200). */
CUresult context_loss_here(void);
extern atomic_bool context_any_lost __attribute__((visibility("hidden")));
static inline CUresult context_loss_at(uint64_t addr)
{
    bool any = atomic_load_explicit(&context_any_lost, memory_order_relaxed);
    return __builtin_expect(any, 0) ? context_loss_of(addr) : CUDA_SUCCESS;
}

#endif
