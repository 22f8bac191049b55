/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See current.h. One thread at a time makes a record, and other threads that need one wait for it.
 * No lock is held over a driver call.
 */
#include "shim/entry/current.h"

#include "shim/context/green_context.h"
#include "shim/context/redzone.h"
#include "shim/context/stream_watch.h"
#include "shim/control/flush.h"
#include "shim/driver/backing.h"
#include "shim/driver/device.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/option/in_force.h"
#include "shim/process/cancel.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/process/text.h"
#include "shim/share/peer.h"

#include <errno.h>
#include <pthread.h>

static pthread_mutex_t making_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;
static bool making;

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
                 "GPUCACHE_PREALLOC asks for %s MiB, but device %d gave only %s MiB",
                 text_fixed(c->config.prealloc_bytes, 1 << 20, 1).text, c->device,
                 text_fixed(given_bytes, 1 << 20, 1).text);
}

/* Two pools cannot each rely on the order of one stream, so the first pool is told before there is
 * a second. Redzones rule it out too, because the library writes them on a stream of its own. */
static bool may_be_single(const struct context *c)
{
    if (c->redzone_bytes || !context_is_alone(c))
        single_stream_disable();
    return stream_watch_may_be_single();
}

static void fill_record(struct context *c, CUcontext ctx)
{
    size_t total = 0;
    real.cuDeviceGetName(c->name, sizeof c->name, c->device);
    real.cuDeviceTotalMem_v2(&total, c->device);
    device_uuid(c->device, &c->uuid);
    in_force_pool_config(c->device, total, &c->config);
    options_warn_beyond(&c->config, c->device, total);
    c->redzone_bytes = options_redzone_bytes(in_force(), c->device, total);
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
        c->reason = "no host memory for a pool";
    } else if (c->config.backing == BACKING_ARENA && !pool_uses_arena(c->pool)) {
        c->backing = "segment";
        c->reason = "no address space for an arena";
    }
}

/* Would a new record of the device get the same backing? */
static bool suits(const struct context *c)
{
    struct pool_config config;
    const char *backing, *reason;
    size_t total = 0;
    real.cuDeviceTotalMem_v2(&total, c->device);
    in_force_pool_config(c->device, total, &config);
    backing_choose(&c->backend, &config, &backing, &reason);
    return config.backing == c->config.backing;
}

/* For the next context of the record's device. What the library knows about the device stays. It is
 * not written again, because other threads may read it. */
static bool refill_record(struct context *c, CUcontext ctx)
{
    if ((c->pool && !pool_is_vacant(c->pool)) || !suits(c))
        return false;
    device_renew(&c->backend, ctx, may_be_single(c));
    atomic_store(&c->redzone_stream, NULL);
    atomic_store(&c->lost_code, CUDA_SUCCESS);
    return !c->pool || pool_revive(c->pool);
}

/* Uses a record that has ended and suits, or adds one. NULL: no room (context_add). One thread at a
 * time. */
static struct context *make_record(CUcontext ctx, CUdevice device)
{
    FOR_EACH_RECORD(c)
        if (c->device == device && context_reuse(c, ctx)) {
            if (refill_record(c, ctx))
                return c;
            context_retire(c);
        }
    struct context *c = context_add(ctx, device);
    if (c) {
        fill_record(c, ctx);
        atomic_store_explicit(&c->filled, true, memory_order_release);
    }
    return c;
}

/* False: the context has ended meanwhile, or may be ending. */
static bool publish_context(struct context *c, CUcontext ctx)
{
    uint64_t given_bytes = reserved_bytes(c);
    atomic_store(&c->hidden, false);
    context_set_config(c); /* options may have changed meanwhile, or before a record came again */
    if (c->pool)
        atomic_fetch_or(&pool_watch, POOL_WATCH_ERRORS); /* of submissions */
    /* After may_be_single a capture may have begun, or another context may have got a pool. From
     * here on calls for all pools reach this one, so it is told now. */
    stream_watch_pool_listed(context_is_alone(c));
    peer_renew(c); /* the pool may have memory already (GPUCACHE_PREALLOC) */
    context_trace(c, false);
    log_info("device %d (%s): backing %s (%s)", c->device, c->name, c->backing, c->reason);
    flush_pool_made(c->config.prealloc_bytes || c->config.max_reserved_bytes != UINT64_MAX);
    bool found = context_made(c, ctx);
    if (found) /* a context that ended meanwhile got less memory for that reason */
        warn_of_short_prealloc(c, given_bytes);
    return found;
}

static struct context *make_context(CUcontext ctx)
{
    CUdevice device;
    pthread_mutex_lock(&making_lock);
    while (making)
        pthread_cond_wait(&made, &making_lock);
    struct context *c = context_find(ctx);
    bool mine = making = !c && !context_is_withdrawn(ctx);
    pthread_mutex_unlock(&making_lock);
    if (!mine)
        return c;
    if (real.cuCtxGetDevice(&device) == CUDA_SUCCESS)
        c = make_record(ctx, device);
    if (c && !publish_context(c, ctx))
        c = NULL;
    pthread_mutex_lock(&making_lock);
    making = false;
    pthread_cond_broadcast(&made);
    pthread_mutex_unlock(&making_lock);
    return c;
}

static struct context *find_or_make(CUcontext ctx)
{
    struct context *c = context_find(ctx);
    if (!c) {
        CUcontext owner = green_context_owner(ctx);
        if (owner && owner != ctx)
            c = context_find(owner);
        if (owner && !c)
            c = make_context(owner);
    }
    return c;
}

/* These functions came with CUDA 7.0. With an older driver the library serves nothing. */
static bool driver_suffices(void)
{
    return real.cuDevicePrimaryCtxGetState && real.cuCtxPushCurrent_v2 && real.cuCtxPopCurrent_v2;
}

static struct context *find_current(void)
{
    CUcontext ctx = NULL;
    if (!state_is_on() && !hooks_init())
        return NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return NULL;
    if (!state_is_on() && (!driver_suffices() || !start_library()))
        return NULL;
    struct context *c = find_or_make(ctx);
    context_remember(c);
    return c;
}

/* For the first call of a thread or of the process, and whenever another context is current. A
 * function of its own, so that the usual way saves no registers for it. */
static SHIM_COLD struct context *current_anew(void)
{
    int saved_errno = errno, cancel = cancel_forbid();
    struct context *c = find_current();
    cancel_allow(cancel);
    errno = saved_errno;
    return c;
}

struct context *current_context(void)
{
    CUcontext ctx = NULL;
    struct context *c = context_latest;
    if (__builtin_expect(state_is_on(), 1) && real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx &&
        atomic_load_explicit(&c->handle, memory_order_relaxed) == ctx && state_is_on())
        return c;
    return current_anew();
}
