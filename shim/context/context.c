/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h. One thread makes a record; others that want the same one wait for it. No lock is held
 * while the driver is called.
 */
#include "shim/context/context.h"

#include "pool/host.h"
#include "pool/spin.h"
#include "shim/entry/answer.h"
#include "shim/driver/backing.h"
#include "shim/process/cancel.h"
#include "shim/driver/capture.h"
#include "shim/control/flush.h"
#include "shim/context/green.h"
#include "shim/share/import.h"
#include "shim/process/log.h"
#include "shim/share/peer.h"
#include "shim/context/redzone.h"
#include "shim/process/state.h"
#include "shim/context/stream.h"

#include <errno.h>
#include <pthread.h>

_Atomic(struct context *) context_records[CONTEXTS_MAX];
atomic_int context_count;

static pthread_mutex_t making_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;
static bool making;

/* Of the lives of contexts: held for a few instructions each, over no driver call. */
static pthread_mutex_t lives_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(CUcontext) primaries[DEVICES_MAX];

/* Without a context none is current: the two are the same. */
static struct context no_context;
__thread struct context *context_latest __attribute__((tls_model("initial-exec"))) = &no_context;

void context_forget_thread(void)
{
    context_latest = &no_context;
    pool_forget_thread();
}

struct context *context_find(CUcontext ctx)
{
    int count = atomic_load_explicit(&context_count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        struct context *c = atomic_load_explicit(&context_records[i], memory_order_acquire);
        if (atomic_load_explicit(&c->handle, memory_order_acquire) == ctx)
            return c;
    }
    return NULL;
}

bool context_is_pooled(void)
{
    CUcontext ctx = NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return false;
    const struct context *c = context_find(ctx);
    return c && c->pool;
}

CUcontext context_primary_handle(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? atomic_load(&primaries[device]) : NULL;
}

/* A thread may have a context current that was reset or destroyed; the driver refuses to serve
 * it. */
bool context_is_alive(CUcontext ctx)
{
    unsigned version;
    return !real.cuCtxGetApiVersion || real.cuCtxGetApiVersion(ctx, &version) == CUDA_SUCCESS;
}

static unsigned long long life_of(CUcontext ctx)
{
    unsigned long long id = 0;
    return real.cuCtxGetId && real.cuCtxGetId(ctx, &id) == CUDA_SUCCESS ? id : 0;
}

static bool primary_is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* Asks the driver. Not for a created context that another thread may have destroyed (context.h,
 * 4). */
static bool is_over(CUcontext ctx, unsigned long long life, enum context_primary primary,
                    CUdevice device)
{
    if ((primary == CONTEXT_PRIMARY && !primary_is_active(device)) || !context_is_alive(ctx))
        return true;
    return life && life_of(ctx) != life;
}

/* Lock held. */
static void show(struct context *c)
{
    CUcontext ctx = atomic_load(&c->ctx);
    if (c->enders || c->state != CONTEXT_ALIVE)
        return;
    atomic_store(&c->handle, ctx);
    atomic_store(&c->quick_handle, ctx);
}

/* Lock held. */
static void withdraw(struct context *c)
{
    atomic_store(&c->quick_handle, (CUcontext)(void *)c);
    atomic_store(&c->handle, NULL);
}

bool context_asks(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    bool may = c->state == CONTEXT_ALIVE && !c->destroyers;
    c->askers += may;
    pthread_mutex_unlock(&lives_lock);
    return may;
}

void context_asked(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    c->askers--;
    pthread_mutex_unlock(&lives_lock);
}

/* Lock held. True: the caller is to bury it. One that is being made is left to its maker. */
static bool condemn(struct context *c)
{
    c->condemned = c->state == CONTEXT_MAKING;
    if (c->state != CONTEXT_ALIVE)
        return false;
    c->state = CONTEXT_ENDING;
    atomic_store(&c->backend.gone, true);
    atomic_store(&c->hidden, true);
    withdraw(c);
    return true;
}

/* What else is kept for a context. */
static void forget(CUcontext ctx)
{
    capture_forget(ctx);
    peer_forget(ctx);
    ipc_forget(ctx);
    green_forget_primary(ctx);
}

static void bury(struct context *c)
{
    if (c->pool)
        pool_abandon(c->pool);
    pthread_mutex_lock(&lives_lock);
    c->state = CONTEXT_ENDED;
    pthread_mutex_unlock(&lives_lock);
}

/* In a forked child threads that are not there may hold locks. A library without a pool is not off:
 * there may be captures. */
static bool is_off(void)
{
    return atomic_load(&state_now) == STATE_OFF;
}

static bool is_meant(const struct context *c, const struct context_end *e)
{
    if (c->state != CONTEXT_MAKING && c->state != CONTEXT_ALIVE)
        return false;
    if (e->ctx)
        return atomic_load(&c->ctx) == e->ctx;
    return (e->device < 0 || c->device == e->device) && c->primary != CONTEXT_CREATED &&
           !c->destroyers;
}

/* True: there is a record. */
static bool begin_end(struct context_end *e)
{
    bool any = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        if (is_meant(c, e)) {
            any = true;
            c->enders++;
            c->destroyers += e->ctx != NULL;
            e->records[i_ / 64] |= UINT64_C(1) << (i_ % 64);
            withdraw(c);
            if (e->hides && c->state == CONTEXT_ALIVE) {
                atomic_store(&c->backend.gone, true);
                atomic_store(&c->hidden, true);
            }
        }
    pthread_mutex_unlock(&lives_lock);
    return any;
}

static bool is_asked_about(const struct context_end *e)
{
    bool asked = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        asked = asked || ((e->records[i_ / 64] >> (i_ % 64) & 1) && c->askers);
    pthread_mutex_unlock(&lives_lock);
    return asked;
}

void context_destroy_begins(struct context_end *e, CUcontext ctx)
{
    *e = (struct context_end){.ctx = ctx, .hides = true};
    if (!ctx || is_off())
        return;
    /* The driver says whether it is a context at all. */
    bool known = begin_end(e);
    CUcontext here = NULL;
    if (known || (state_is_on() && real.cuCtxGetCurrent(&here) == CUDA_SUCCESS && here == ctx))
        e->life = life_of(ctx);
    for (unsigned turn = 0; known && is_asked_about(e); turn++)
        spin_pause(turn);
}

/* Captures and imports may have been made in a primary context that has no record. */
void context_release_begins(struct context_end *e, CUdevice device, bool reset)
{
    *e = (struct context_end){.device = device, .hides = reset};
    if (is_off())
        return;
    begin_end(e);
    if (capture_open())
        e->count = capture_contexts(e->others, CONTEXT_OTHERS_MAX);
    if (ipc_any_open() || ipc_any_closed())
        e->count += ipc_contexts(e->others + e->count, CONTEXT_OTHERS_MAX - e->count);
    CUcontext primary = context_primary_handle(device);
    size_t all = e->count;
    e->count = 0;
    for (size_t i = 0; i < all; i++)
        if (!primary || e->others[i] == primary) {
            e->others[e->count] = e->others[i];
            e->lives[e->count] = life_of(e->others[i]);
            e->count++;
        }
}

static bool others_alive(const struct context *c)
{
    FOR_EACH_CONTEXT(other)
        if (other != c)
            return true;
    return false;
}

static uint64_t reserved_bytes(const struct context *c)
{
    struct pool_stats stats = {0};
    if (c->pool)
        pool_stats(c->pool, &stats);
    return stats.reserved_bytes;
}

static void warn_of_short_prealloc(const struct context *c, uint64_t given_bytes)
{
    if (c->pool && given_bytes < c->config.prealloc_bytes)
        log_once(LOG_LEVEL_WARN,
                 "GPUCACHE_PREALLOC asks for %.1f MiB, of which device %d gave %.1f MiB",
                 (double)c->config.prealloc_bytes / (1 << 20), c->device,
                 (double)given_bytes / (1 << 20));
}

/* The context did not end: it is found again, unless other threads may be ending it. While it was
 * hidden the program may have submitted work that its pool was not told of, and another pool may
 * have been made that did not know of it. */
static void reopen(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    bool was_hidden = atomic_load(&c->hidden) && !c->enders && c->state == CONTEXT_ALIVE;
    if (was_hidden) {
        atomic_store(&c->backend.gone, false);
        atomic_store(&c->hidden, false);
    }
    pthread_mutex_unlock(&lives_lock);
    if (was_hidden && others_alive(c))
        stream_give_up();
    if (was_hidden && c->pool)
        pool_leave_single_stream(c->pool);
    pthread_mutex_lock(&lives_lock);
    show(c);
    pthread_mutex_unlock(&lives_lock);
}

/* known: begin_end found the record. Else it may have come during the call. */
static void judge(struct context_end *e, struct context *c, bool known, bool done)
{
    pthread_mutex_lock(&lives_lock);
    bool meant = done && is_meant(c, e), asks = meant && !e->ctx;
    c->askers += asks;
    CUcontext ctx = atomic_load(&c->ctx);
    unsigned long long life = c->life;
    enum context_primary primary = c->primary;
    pthread_mutex_unlock(&lives_lock);
    bool over = meant;
    if (asks)
        over = (e->hides && known && primary == CONTEXT_PRIMARY) ||
               is_over(ctx, life, primary, c->device);
    else if (over)
        over = known || (life && life == e->life);
    pthread_mutex_lock(&lives_lock);
    c->askers -= asks;
    c->enders -= known;
    c->destroyers -= known && e->ctx;
    bool mine = over && atomic_load(&c->ctx) == ctx && c->life == life && condemn(c);
    pthread_mutex_unlock(&lives_lock);
    if (mine) {
        forget(ctx);
        bury(c);
    } else if (known) {
        reopen(c);
    }
}

void context_end_finish(struct context_end *e, bool done)
{
    int saved_errno = errno;
    if (is_off())
        return;
    if (e->ctx && done)
        forget(e->ctx);
    FOR_EACH_RECORD(c)
        judge(e, c, e->records[i_ / 64] >> (i_ % 64) & 1, done);
    for (size_t i = 0; i < e->count && done; i++)
        if (is_over(e->others[i], e->lives[i], CONTEXT_MAYBE_PRIMARY, e->device))
            forget(e->others[i]);
    errno = saved_errno;
}

/* The last life may have ended in a way that was not seen: nothing of it is found in this one. */
void context_retained(CUdevice device, CUcontext primary)
{
    struct context_end e = {.device = device};
    if (device >= 0 && device < DEVICES_MAX)
        atomic_store(&primaries[device], primary);
    if (is_off())
        return;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        if (is_meant(c, &e))
            c->primary = atomic_load(&c->ctx) == primary ? CONTEXT_PRIMARY : CONTEXT_CREATED;
    pthread_mutex_unlock(&lives_lock);
    context_end_finish(&e, true);
}

/* From here on the record is the context's, and an ender of the context finds it. */
static void name(struct context *c, CUcontext ctx, CUdevice device)
{
    CUcontext primary = context_primary_handle(device);
    unsigned long long life = life_of(ctx);
    enum context_primary kind = primary == ctx ? CONTEXT_PRIMARY : CONTEXT_CREATED;
    if (!primary && primary_is_active(device))
        kind = CONTEXT_MAYBE_PRIMARY;
    pthread_mutex_lock(&lives_lock);
    withdraw(c);
    atomic_store(&c->ctx, ctx);
    atomic_store(&c->hidden, true);
    if (c->device != device)
        c->device = device; /* others may look at it */
    c->life = life;
    c->primary = kind;
    c->condemned = false;
    c->state = CONTEXT_MAKING;
    pthread_mutex_unlock(&lives_lock);
}

/* Two pools cannot rely on one stream each: the first is told before there is a second. And the
 * library writes the pattern of redzones on a stream of its own, so stream order alone says nothing
 * any more. */
static bool may_be_single(const struct context *c)
{
    if (c->redzone_bytes || others_alive(c))
        stream_give_up();
    return stream_may_be_single();
}

static void fill(struct context *c, CUcontext ctx)
{
    size_t total = 0;
    real.cuDeviceGetName(c->name, sizeof c->name, c->device);
    real.cuDeviceTotalMem_v2(&total, c->device);
    options_pool_config(state_options(), c->device, total, &c->config);
    c->redzone_bytes = options_redzone_bytes(state_options(), c->device, total);
    if (c->redzone_bytes)
        atomic_store(&redzone_in_use, true);
    device_init(&c->backend, ctx, c->device, may_be_single(c));
    c->backend.base.sees_all = c->redzone_bytes;
    backing_choose(&c->backend, &c->config, &c->backing, &c->reason);
    if (c->config.backing == BACKING_DRIVER)
        return;
    c->pool = pool_create(&c->backend.base, &c->config, c);
    if (!c->pool) {
        c->backing = "driver";
        c->reason = "no host memory";
    } else if (c->config.backing == BACKING_ARENA && !pool_uses_arena(c->pool)) {
        c->backing = "segment";
        c->reason = "no address space for an arena";
    }
}

/* Would the device's memory still be had in the same way? */
static bool suits(const struct context *c)
{
    struct pool_config config;
    const char *backing, *reason;
    size_t total = 0;
    real.cuDeviceTotalMem_v2(&total, c->device);
    options_pool_config(state_options(), c->device, total, &config);
    backing_choose(&c->backend, &config, &backing, &reason);
    return config.backing == c->config.backing;
}

/* For the next context of its device. What was found out about the device stays, and is not written
 * again, since other threads may look at it. */
static bool refill(struct context *c, CUcontext ctx)
{
    if ((c->pool && !pool_is_vacant(c->pool)) || !suits(c))
        return false;
    device_renew(&c->backend, ctx, may_be_single(c));
    atomic_store(&c->redzone_stream, NULL);
    atomic_store(&c->lost_code, CUDA_SUCCESS);
    return !c->pool || pool_revive(c->pool);
}

static bool has_ended(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    bool ended = c->state == CONTEXT_ENDED && !c->enders && !c->askers;
    pthread_mutex_unlock(&lives_lock);
    return ended;
}

static void end_in_vain(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    c->state = CONTEXT_ENDED;
    pthread_mutex_unlock(&lives_lock);
}

/* A record that has ended and suits, or a new one behind the others. NULL: CONTEXTS_MAX records are
 * in use, or there is no host memory. By one thread at a time. */
static struct context *make_record(CUcontext ctx, CUdevice device)
{
    FOR_EACH_RECORD(c)
        if (c->device == device && has_ended(c)) {
            name(c, ctx, device);
            if (refill(c, ctx))
                return c;
            end_in_vain(c);
        }
    int count = atomic_load(&context_count);
    struct context *c = count < CONTEXTS_MAX ? host_pages(sizeof *c) : NULL;
    if (c) {
        name(c, ctx, device);
        atomic_store_explicit(&context_records[count], c, memory_order_seq_cst);
        atomic_store_explicit(&context_count, count + 1, memory_order_seq_cst);
        fill(c, ctx);
    }
    return c;
}

/* False: its context has ended meanwhile. */
static bool publish(struct context *c, CUcontext ctx)
{
    uint64_t given_bytes = reserved_bytes(c);
    atomic_store(&c->hidden, false);
    if (c->pool)
        answer_watch();
    /* A capture may have begun since the pool was told that one stream may be enough, or a second
     * context is at work: now that it is listed, tell it. */
    stream_pool_listed(!others_alive(c));
    log_info("device %d (%s): backing %s (%s)", c->device, c->name, c->backing, c->reason);
    control_pool_made(c->config.prealloc_bytes || c->config.max_reserved_bytes != UINT64_MAX);
    pthread_mutex_lock(&lives_lock);
    enum context_primary primary = c->primary; /* a retain may have told */
    pthread_mutex_unlock(&lives_lock);
    bool over = is_over(ctx, c->life, primary, c->device);
    pthread_mutex_lock(&lives_lock);
    c->state = CONTEXT_ALIVE;
    bool mine = (over || c->condemned) && condemn(c);
    show(c);
    pthread_mutex_unlock(&lives_lock);
    if (mine)
        bury(c);
    bool found = atomic_load(&c->handle) == ctx;
    if (found) /* a context that ended meanwhile was given nothing for that reason */
        warn_of_short_prealloc(c, given_bytes);
    return found;
}

/* An ender may be at it: requests go to the driver meanwhile. */
static bool is_withdrawn(CUcontext ctx)
{
    bool found = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        found = found || (c->state == CONTEXT_ALIVE && atomic_load(&c->ctx) == ctx &&
                          !atomic_load(&c->handle));
    pthread_mutex_unlock(&lives_lock);
    return found;
}

static struct context *make(CUcontext ctx)
{
    CUdevice device;
    pthread_mutex_lock(&making_lock);
    while (making)
        pthread_cond_wait(&made, &making_lock);
    struct context *c = context_find(ctx);
    bool mine = making = !c && !is_withdrawn(ctx);
    pthread_mutex_unlock(&making_lock);
    if (!mine)
        return c;
    if (real.cuCtxGetDevice(&device) == CUDA_SUCCESS)
        c = make_record(ctx, device);
    if (c && !publish(c, ctx))
        c = NULL;
    pthread_mutex_lock(&making_lock);
    making = false;
    pthread_cond_broadcast(&made);
    pthread_mutex_unlock(&making_lock);
    return c;
}

static struct context *find_or_make(CUcontext ctx)
{
    int saved_errno = errno;
    struct context *c = context_find(ctx);
    if (!c) {
        CUcontext owner = green_owner(ctx);
        if (owner && owner != ctx)
            c = context_find(owner);
        if (owner && !c)
            c = make(owner);
    }
    errno = saved_errno;
    return c;
}

/* What everything rests on came with CUDA 7.0; an older driver keeps its programs to itself. */
static bool driver_suffices(void)
{
    return real.cuDevicePrimaryCtxGetState && real.cuCtxPushCurrent_v2 && real.cuCtxPopCurrent_v2;
}

/* The first call of a thread or of the process, and whenever another context is current. Apart, so that
 * the usual way saves no registers for it. */
static struct context *find_current(void)
{
    CUcontext ctx = NULL;
    if (!state_is_on() && !hooks_init())
        return NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return NULL;
    if (!state_is_on() && (!driver_suffices() || !state_start()))
        return NULL;
    struct context *c = find_or_make(ctx);
    context_latest = c ? c : &no_context;
    return c;
}

static SHIM_COLD struct context *current_anew(void)
{
    int cancel = cancel_forbid();
    struct context *c = find_current();
    cancel_allow(cancel);
    return c;
}

struct context *context_current(void)
{
    CUcontext ctx = NULL;
    struct context *c = context_latest;
    if (__builtin_expect(state_is_on(), 1) && real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx &&
        atomic_load_explicit(&c->handle, memory_order_relaxed) == ctx && state_is_on())
        return c;
    return current_anew();
}
