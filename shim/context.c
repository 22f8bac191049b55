/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h. One thread makes a record; others that want the same one wait for it. No lock is held
 * while the driver is called.
 */
#include "shim/context.h"

#include "pool/host.h"
#include "shim/backing.h"
#include "shim/cancel.h"
#include "shim/control.h"
#include "shim/green.h"
#include "shim/log.h"
#include "shim/peer.h"
#include "shim/redzone.h"
#include "shim/state.h"
#include "shim/stream.h"

#include <errno.h>
#include <pthread.h>

static _Atomic(struct context *) contexts[CONTEXTS_MAX];
static atomic_int context_count;

static pthread_mutex_t making_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;
static bool making;

/* Without a context none is current: the two are the same. */
static struct context no_context;
__thread struct context *context_latest __attribute__((tls_model("initial-exec"))) = &no_context;

void context_forget_thread(void)
{
    context_latest = &no_context;
    pool_forget_thread();
}

void context_close(struct context *c)
{
    atomic_store(&c->backend.gone, true);
    atomic_store(&c->quick_handle, (CUcontext)(void *)c);
    atomic_store(&c->handle, NULL);
}

void context_reopen(struct context *c, CUcontext ctx)
{
    atomic_store(&c->backend.gone, false);
    atomic_store(&c->handle, ctx);
    atomic_store(&c->quick_handle, ctx);
}

struct context *context_find(CUcontext ctx)
{
    int count = atomic_load_explicit(&context_count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        struct context *c = atomic_load_explicit(&contexts[i], memory_order_acquire);
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
    unsigned flags;
    int active = 0;
    CUcontext primary = NULL;
    if (real.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        real.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    if (hooks_present(HOOK_cuDevicePrimaryCtxRelease_v2))
        atomic_load(&real.cuDevicePrimaryCtxRelease_v2)(device);
    else
        atomic_load(&real.cuDevicePrimaryCtxRelease)(device); /* before 11.0 */
    return primary;
}

static bool others_alive(const struct context *c)
{
    int count = atomic_load(&context_count);
    for (int i = 0; i < count; i++) {
        const struct context *other = atomic_load(&contexts[i]);
        if (other != c && other->pool && atomic_load(&other->handle))
            return true;
    }
    return false;
}

static void fill(struct context *c, CUcontext ctx)
{
    size_t total = 0;
    real.cuCtxGetDevice(&c->device);
    real.cuDeviceGetName(c->name, sizeof c->name, c->device);
    real.cuDeviceTotalMem_v2(&total, c->device);
    c->primary = context_primary_handle(c->device) == ctx;
    options_pool_config(state_options(), c->device, total, &c->config);
    c->redzone_bytes = options_redzone_bytes(state_options(), c->device, total);
    if (c->redzone_bytes) {
        /* The pattern is written on a stream of our own: stream order alone says nothing any more. */
        stream_give_up();
        atomic_store(&redzone_in_use, true);
    }
    /* Two pools cannot rely on one stream each: the first is told before there is a second. */
    if (others_alive(c))
        stream_give_up();
    device_init(&c->backend, ctx, c->device, stream_may_be_single());
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
    if (c->pool && pool_uses_arena(c->pool))
        peer_watch();
}

/* Where a new record goes: behind the others, or where they are too many, in the place of the one whose
 * context ended first; that one is in no report any more, but stays for those who still look at it. -1:
 * so many contexts are alive. */
static int find_place(void)
{
    static int next;
    int count = atomic_load(&context_count);
    if (count < CONTEXTS_MAX)
        return count;
    for (int tries = 0; tries < CONTEXTS_MAX; tries++) {
        int at = next++ % CONTEXTS_MAX;
        if (atomic_load(&atomic_load(&contexts[at])->ended))
            return at;
    }
    return -1;
}

static void publish(struct context *c, CUcontext ctx, int at)
{
    int count = atomic_load(&context_count);
    atomic_store_explicit(&c->quick_handle, ctx, memory_order_relaxed);
    atomic_store_explicit(&c->handle, ctx, memory_order_release);
    atomic_store_explicit(&contexts[at], c, memory_order_seq_cst);
    if (at == count)
        atomic_store_explicit(&context_count, at + 1, memory_order_seq_cst);
    /* A capture may have begun since the pool was told that one stream may be enough, or a second
     * context is at work: now that it is listed, tell it. */
    stream_pool_listed(!others_alive(c));
    log_info("device %d (%s): backing %s (%s)", c->device, c->name, c->backing, c->reason);
    control_pool_made(c->config.prealloc_bytes || c->config.max_reserved_bytes != UINT64_MAX);
}

static struct context *make(CUcontext ctx)
{
    pthread_mutex_lock(&making_lock);
    while (making)
        pthread_cond_wait(&made, &making_lock);
    struct context *c = context_find(ctx);
    int at = c ? -1 : find_place();
    bool mine = at >= 0;
    making = mine;
    pthread_mutex_unlock(&making_lock);
    if (!mine)
        return c;
    c = host_pages(sizeof *c);
    if (c) {
        fill(c, ctx);
        publish(c, ctx, at);
    }
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
    return real.cuDevicePrimaryCtxGetState && real.cuDevicePrimaryCtxRetain &&
           real.cuCtxPushCurrent_v2 && real.cuCtxPopCurrent_v2;
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

#define FOR_EACH_CONTEXT(c)                                                                        \
    for (int i_ = 0, n_ = atomic_load_explicit(&context_count, memory_order_seq_cst); i_ < n_; i_++) \
        for (struct context *c = atomic_load_explicit(&contexts[i_], memory_order_acquire);        \
             c && c->pool && atomic_load(&c->handle); c = NULL)

struct context *context_primary(CUdevice device)
{
    FOR_EACH_CONTEXT(c)
        if (c->device == device && c->primary)
            return c;
    return NULL;
}

void context_for_each_range(CUdevice device, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                            void *arg)
{
    FOR_EACH_CONTEXT(c)
        if (c->device == device && pool_uses_arena(c->pool))
            pool_for_each_range(c->pool, f, arg);
}

size_t context_arenas_elsewhere(CUdevice device, CUcontext *ctx, CUdevice *owner, size_t max)
{
    size_t count = 0;
    FOR_EACH_CONTEXT(c)
        if (c->device != device && pool_uses_arena(c->pool) && count < max) {
            owner[count] = c->device;
            ctx[count++] = atomic_load(&c->handle);
        }
    return count;
}

void context_for_each_pool(void (*f)(struct pool *p))
{
    FOR_EACH_CONTEXT(c)
        f(c->pool);
}

void context_submit(uint64_t stream)
{
    FOR_EACH_CONTEXT(c)
        pool_submit(c->pool, stream);
}

uint64_t context_trim(int device, const struct pool_trim *trim)
{
    uint64_t back = 0;
    FOR_EACH_CONTEXT(c)
        if (device < 0 || device == c->device)
            back += pool_trim(c->pool, trim);
    return back;
}

uint64_t context_tick(void)
{
    uint64_t back = 0;
    FOR_EACH_CONTEXT(c)
        if (pool_tick_ns(c->pool))
            back += pool_tick(c->pool);
    return back;
}

uint64_t context_tick_ns(void)
{
    uint64_t shortest = 0;
    FOR_EACH_CONTEXT(c)
    {
        uint64_t tick = pool_tick_ns(c->pool);
        if (tick && (!shortest || tick < shortest))
            shortest = tick;
    }
    return shortest;
}

uint64_t context_idle_bytes(int device)
{
    uint64_t idle = 0;
    FOR_EACH_CONTEXT(c)
        if (c->device == device)
            idle += pool_idle_bytes(c->pool);
    return idle;
}

/* Pools of contexts that are gone are reported too: what they did is part of the story. */
size_t context_report(struct report_pool *out, size_t max)
{
    size_t count = 0;
    for (int i = 0; i < atomic_load(&context_count) && count < max; i++) {
        struct context *c = atomic_load(&contexts[i]);
        out[count] = (struct report_pool){
            .device = c->device, .name = c->name, .backing = c->backing, .reason = c->reason};
        if (c->pool)
            pool_stats(c->pool, &out[count].stats);
        count++;
    }
    return count;
}
