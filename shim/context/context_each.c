/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h: functions for all contexts and pools, and the search for lost contexts. What they
 * tell for the report is in context_report.c. The one lock is that of context_set_config.
 */
#include "shim/context/context.h"
#include "shim/option/in_force.h"

#include "pool/bits.h"
#include "pool/host_memory.h"
#include "pool/spin.h"
#include "shim/driver/async_pool.h"
#include "shim/driver/error.h"
#include "shim/driver/reservation.h"
#include "shim/process/cancel.h"
#include "shim/process/own_thread.h"
#include "shim/trace/dump.h"

#include <pthread.h>
#include <stdio.h>

bool context_is_pooled(void)
{
    CUcontext ctx = NULL;
    if (real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return false;
    const struct context *c = context_find(ctx);
    return c && c->pool;
}

void context_for_each_range(CUdevice device,
                            void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg)
{
    FOR_EACH_CONTEXT(c)
        if (c->device == device && pool_uses_arena(c->pool))
            pool_for_each_range(c->pool, f, arg);
}

uint64_t context_arena_devices(void)
{
    uint64_t devices = 0;
    FOR_EACH_CONTEXT(c)
        if (pool_uses_arena(c->pool))
            devices |= device_bit(c->device);
    return devices;
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

/* Calls f for all that a list of the pool's has. */
static void each_range(struct context *c,
                       size_t (*list)(struct pool *p, struct pool_range *out, size_t max),
                       void (*f)(uint64_t addr, uint64_t size_bytes, unsigned context))
{
    size_t most = list(c->pool, NULL, 0) + 1024; /* other threads go on */
    struct pool_range *held = host_pages(most * sizeof *held);
    if (!held)
        return;
    size_t count = list(c->pool, held, most);
    for (size_t i = 0; i < count && i < most; i++)
        f(held[i].addr, held[i].size_bytes, c->backend.number);
    host_pages_free(held, most * sizeof *held);
}

static void note_held(uint64_t addr, uint64_t size_bytes, unsigned context)
{
    TRACE(HELD, .a = addr, .b = size_bytes, .context = context);
}

static void trace_live(uint64_t addr, uint64_t size_bytes, unsigned context)
{
    TRACE(LIVE, .a = addr, .b = size_bytes, .context = context);
}

void context_trace(struct context *c, bool held)
{
    char text[sizeof c->name + sizeof c->uuid.text + 1];
    if (!trace_is_on() || !c->pool)
        return;
    snprintf(text, sizeof text, "%s %s", c->uuid.text, c->name);
    TRACE(CONTEXT, .a = (uint64_t)c->device, .b = c->backend.base.total_bytes, .text = text,
          .context = c->backend.number);
    if (!held)
        return;
    each_range(c, pool_list_chunks, note_held);
    each_range(c, pool_list_live, trace_live);
}

void context_trace_all(void)
{
    FOR_EACH_CONTEXT(c)
        context_trace(c, true);
}

void context_trace_gpus(void)
{
    uint64_t seen = 0;
    FOR_EACH_CONTEXT(c) {
        uint64_t free_bytes, total_bytes;
        struct backend *b = &c->backend.base;
        if (c->device >= 64 || seen >> c->device & 1 || !context_pin(c))
            continue;
        int code = b->ops->mem_info(b, &free_bytes, &total_bytes);
        context_unpin(c);
        if (code)
            continue;
        seen |= UINT64_C(1) << c->device;
        TRACE(GPU, .a = free_bytes, .b = total_bytes, .aux = trace_aux((uint64_t)c->device));
    }
}

void context_dump_all(void)
{
    struct pool_stats stats;
    FOR_EACH_CONTEXT(c) {
        if (!c->pool)
            continue;
        context_trace(c, false);
        pool_stats(c->pool, &stats);
        trace_dump_held(stats.reserved_bytes, c->backend.number);
        each_range(c, pool_list_live, trace_dump_live);
    }
}

uint64_t context_async_devices(void)
{
    uint64_t devices = async_pool_devices();
    FOR_EACH_RECORD(c)
        if (!atomic_load(&c->hidden))
            devices |= device_bit(c->device);
    return devices;
}

/* Our own pools keep first. */
static uint64_t trim_async(CUdevice device, const struct pool_trim *trim)
{
    uint64_t own = context_idle_bytes(device);
    uint64_t keep = trim->keep_bytes > own ? trim->keep_bytes - own : 0;
    return async_pool_trim(device, keep, trim->most_bytes ? trim->most_bytes : UINT64_MAX);
}

uint64_t context_trim(int device, const struct pool_trim *trim)
{
    uint64_t back = 0;
    if (!own_visit_begin())
        return 0;
    FOR_EACH_CONTEXT(c)
        if (device < 0 || device == c->device)
            back += pool_trim(c->pool, trim);
    FOR_EACH_DEVICE(i, context_async_devices())
        if (device < 0 || device == i)
            back += trim_async(i, trim);
    own_visit_end();
    return back;
}

void context_settle(int device, struct context_marks *marks)
{
    *marks = (struct context_marks){{0}};
    if (!own_visit_begin())
        return;
    FOR_EACH_CONTEXT(c)
        if (device < 0 || device == c->device)
            marks->of[c->index] = pool_settle(c->pool);
    own_visit_end();
}

bool context_has_settled(const struct context_marks *marks)
{
    bool settled = true;
    if (!own_visit_begin())
        return true; /* no work runs */
    FOR_EACH_CONTEXT(c)
        if (marks->of[c->index])
            settled = pool_has_settled(c->pool, marks->of[c->index]) && settled;
    own_visit_end();
    return settled;
}

bool context_release(uint64_t devices, enum pool_release step)
{
    bool some = false;
    if (!own_visit_begin())
        return false;
    FOR_EACH_CONTEXT(c)
        if (device_bit(c->device) & devices)
            some = pool_release(c->pool, step) || some;
    if (step == POOL_RELEASE_IDLE)
        FOR_EACH_DEVICE(i, context_async_devices() & devices)
            some = async_pool_release(i) || some;
    own_visit_end();
    return some;
}

atomic_bool context_any_lost;

/* A call in one context may return the code of work in another, and codes do not always stick. So
 * each context is asked. The question waits for no work, and a capture allows it. */
static void look_for_loss(struct context *c)
{
    uint64_t free_bytes, total_bytes;
    struct backend *b = &c->backend.base;
    if (atomic_load(&c->lost_code) != CUDA_SUCCESS || !context_pin(c))
        return;
    int code = b->ops->mem_info(b, &free_bytes, &total_bytes);
    if (error_is_loss((CUresult)code)) {
        atomic_store(&c->lost_code, code);
        atomic_store(&context_any_lost, true);
        pool_lose(c->pool);
    }
    context_unpin(c);
}

/* Between context_pin and context_unpin no other context can get the record. */
void context_look_for_loss(void)
{
    if (!own_visit_begin())
        return;
    int cancel = cancel_forbid();
    FOR_EACH_CONTEXT(c)
        look_for_loss(c);
    cancel_allow(cancel);
    own_visit_end();
}

/* What the pool says of an address holds if the record of the pool's context was not withdrawn at
 * that moment. Otherwise the driver may have given the address to others.
 * 1. `shown` is read before the look-up, and `withdrawals` before `shown` and after the look-up. If
 *    the record was shown and was not withdrawn since, it was one context's all the time.
 * 2. So two look-ups are needed: the first one names the record. If a thread looked up once and
 *    then at the record, it could be held up in between, and find the record shown for the next
 *    context.
 * 3. A withdrawn record is of a context that may be ending. Either its pool forgets the address, or
 *    the record is shown again.
 * 4. The library's reservations are nobody else's. */
enum pool_status context_lookup(uint64_t addr, struct pool_block *block)
{
    enum pool_status found = pool_lookup(addr, block);
    for (unsigned turn = 0; found != POOL_FOREIGN && turn < CONTEXT_AWAIT_TURNS; turn++) {
        const struct context *c = pool_owner(block->pool);
        if (reservation_covers(addr, 1) || context_ends_here())
            break;
        unsigned withdrawals = atomic_load(&c->withdrawals);
        bool shown = atomic_load(&c->handle);
        if (!shown)
            spin_pause(turn);
        found = pool_lookup(addr, block);
        if (shown && found != POOL_FOREIGN && pool_owner(block->pool) == c &&
            atomic_load(&c->withdrawals) == withdrawals)
            break;
    }
    return found;
}

enum pool_status context_expose(uint64_t addr)
{
    struct pool_block block;
    bool is_first = trace_is_on() && pool_lookup(addr, &block) == POOL_OK && !block.exposed;
    enum pool_status status = pool_expose(addr);
    if (status == POOL_OK && is_first)
        TRACE(EXPOSED, .a = block.requested_bytes, .b = block.addr);
    return status;
}

CUresult context_loss_of(uint64_t addr)
{
    struct pool_block block;
    if (pool_lookup(addr, &block) != POOL_OK)
        return CUDA_SUCCESS;
    const struct context *c = pool_owner(block.pool);
    return (CUresult)atomic_load(&c->lost_code);
}

CUresult context_loss_here(void)
{
    CUcontext ctx = NULL;
    if (!atomic_load(&context_any_lost) || real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return CUDA_SUCCESS;
    const struct context *c = context_find(ctx);
    return c ? (CUresult)atomic_load(&c->lost_code) : CUDA_SUCCESS;
}

/* 1. The thread that takes the lock last reads the newest options. So no pool gets older ones after
 *    newer ones.
 * 2. A maker lists its pool, then comes here. The control thread changes options, then comes here
 *    for all pools that are listed. One of the two sees the other. If the maker lists the pool
 *    first, the control thread finds it listed. Otherwise the maker reads the new options.
 * The lock is held over no driver call. */
void context_set_config(struct context *c)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct pool_config config;
    if (!c->pool)
        return;
    pthread_mutex_lock(&lock);
    in_force_pool_config(c->device, c->backend.base.total_bytes, &config);
    pool_set_config(c->pool, &config);
    pthread_mutex_unlock(&lock);
}

void context_set_configs(void)
{
    FOR_EACH_CONTEXT(c)
        context_set_config(c);
}

/* Bytes by which the driver's free memory is below MIN_FREE. The driver tells it in a context of
 * the device only; 0: no record has one. */
static uint64_t device_shortage(CUdevice device, uint64_t min_free_bytes)
{
    FOR_EACH_RECORD(c) {
        uint64_t free_bytes, total_bytes;
        struct backend *b = &c->backend.base;
        if (!min_free_bytes || c->device != device || atomic_load(&c->hidden) || !context_pin(c))
            continue;
        int code = b->ops->mem_info(b, &free_bytes, &total_bytes);
        context_unpin(c);
        return code || free_bytes >= min_free_bytes ? 0 : min_free_bytes - free_bytes;
    }
    return 0;
}

static void find_limits(CUdevice device, struct pool_config *out)
{
    const struct device_identity *id = device_identity(device);
    in_force_pool_config(device, id ? id->total_bytes : 0, out);
}

/* The limits hold for idle memory of both kinds together. Ours is kept first. */
static uint64_t tick_async(CUdevice device, uint64_t *expired_bytes)
{
    struct pool_config config;
    uint64_t back = 0, own = context_idle_bytes(device);
    find_limits(device, &config);
    if (config.max_idle_bytes != UINT64_MAX)
        back += async_pool_trim(device, config.max_idle_bytes - min_u64(own, config.max_idle_bytes),
                                UINT64_MAX);
    uint64_t short_bytes = device_shortage(device, config.min_free_bytes);
    if (short_bytes > own)
        back += async_pool_trim(device, 0, short_bytes - own);
    uint64_t expired =
        config.idle_timeout_ns ? async_pool_expire(device, config.idle_timeout_ns) : 0;
    *expired_bytes += expired;
    return back + expired;
}

uint64_t context_tick(uint64_t *expired_bytes)
{
    uint64_t back = 0;
    *expired_bytes = 0;
    if (!own_visit_begin())
        return 0;
    if (async_pool_any())
        FOR_EACH_DEVICE(i, context_async_devices())
            back += tick_async(i, expired_bytes);
    FOR_EACH_CONTEXT(c)
        if (pool_tick_ns(c->pool))
            back += pool_tick(c->pool, expired_bytes);
    own_visit_end();
    return back;
}

/* 0 is longer than any. */
static uint64_t shorter_tick(uint64_t a, uint64_t b)
{
    return a - 1 < b - 1 ? a : b;
}

/* The program may open a device of the driver's own pools at any time. So limits of a device that
 * has no pool of ours count from the first stream-ordered allocation on. */
uint64_t context_tick_ns(void)
{
    struct pool_config config;
    uint64_t shortest = 0;
    FOR_EACH_CONTEXT(c)
        shortest = shorter_tick(shortest, pool_tick_ns(c->pool));
    if (async_pool_any())
        FOR_EACH_DEVICE(i, UINT64_MAX) {
            in_force_pool_config(i, UINT64_MAX, &config); /* of whatever size */
            shortest = shorter_tick(shortest, pool_config_tick_ns(&config));
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

uint64_t context_away_bytes(int device)
{
    uint64_t bytes = 0;
    FOR_EACH_CONTEXT(c)
        if (device < 0 || c->device == device)
            bytes += pool_away_bytes(c->pool);
    return bytes;
}

uint64_t context_held_bytes(CUdevice device)
{
    struct pool_stats stats;
    struct async_stats async;
    async_pool_stats(device, &async);
    uint64_t bytes = async.async_reserved_bytes;
    FOR_EACH_CONTEXT(c)
        if (c->device == device && c->pool) {
            pool_stats(c->pool, &stats);
            bytes += stats.reserved_bytes - min_u64(stats.away_bytes, stats.reserved_bytes);
        }
    return bytes;
}

uint64_t context_behind_work_bytes(int device)
{
    uint64_t bytes = 0;
    FOR_EACH_CONTEXT(c)
        if (c->device == device)
            bytes += pool_behind_work_bytes(c->pool);
    return bytes;
}
