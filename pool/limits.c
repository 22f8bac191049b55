/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See limits.h, and pool_tick in pool.h.
 */
#include "pool/limits.h"

#include "pool/release.h"
#include "pool/state.h"
#include "pool/tuning.h"

#define TICK_NS (100 * MS_NS)

uint64_t pool_config_tick_ns(const struct pool_config *c)
{
    uint64_t tick = c->max_idle_bytes != UINT64_MAX || c->min_free_bytes ? TICK_NS : 0;
    uint64_t eighth = max_u64(c->idle_timeout_ns / 8, 10 * MS_NS);
    if (c->idle_timeout_ns)
        tick = tick ? min_u64(tick, eighth) : eighth;
    return tick;
}

/* MAX_RESERVED may have been lowered below what is reserved. Live memory stays, so what is over the
 * limit goes back as it becomes idle. */
void limits_set_tick(struct pool *p)
{
    const struct pool_config *c = &p->config;
    uint64_t tick = pool_config_tick_ns(c);
    p->most_reserved_bytes =
        max_u64(c->max_reserved_bytes, p->stats.reserved_bytes + p->planned_bytes);
    if (p->most_reserved_bytes > c->max_reserved_bytes)
        tick = tick ? min_u64(tick, TICK_NS) : TICK_NS;
    atomic_store_explicit(&p->tick_ns, tick, memory_order_relaxed);
}

uint64_t pool_tick_ns(const struct pool *p)
{
    return atomic_load_explicit(&p->tick_ns, memory_order_relaxed);
}

uint64_t limits_driver_free_bytes(struct pool *p, uint64_t unknown)
{
    uint64_t free_bytes = 0, total_bytes = 0;
    state_unlock(p);
    int failed = p->backend->ops->mem_info(p->backend, &free_bytes, &total_bytes);
    state_lock(p);
    return failed ? unknown : free_bytes;
}

/* Bytes by which the driver's free memory is below MIN_FREE. */
static uint64_t free_shortage(struct pool *p)
{
    uint64_t min = p->config.min_free_bytes;
    uint64_t free_bytes = min ? limits_driver_free_bytes(p, UINT64_MAX) : 0;
    return free_bytes < min ? min - free_bytes : 0;
}

/* The device stays short of MIN_FREE: others may give some. The control thread does not wait. */
static void ask_for(struct pool *p, uint64_t short_bytes)
{
    struct backend *b = p->backend;
    if (!b->ops->ask_in_background)
        return;
    state_unlock(p);
    b->ops->ask_in_background(b, short_bytes);
    state_lock(p);
}

uint64_t pool_tick(struct pool *p, uint64_t *expired_bytes)
{
    const struct pool_config *c = &p->config;
    uint64_t back = 0, expired = 0;
    state_enter(p);
    if (!p->abandoned && p->stats.reserved_bytes) {
        p->now_ns = p->backend->ops->now_ns(p->backend);
        release_settle(p, 0);
        uint64_t idle = release_idle_bytes(p), over = 0, short_bytes = free_shortage(p);
        if (idle > c->max_idle_bytes)
            over = idle - c->max_idle_bytes;
        if (p->stats.reserved_bytes > c->max_reserved_bytes)
            over = max_u64(over, p->stats.reserved_bytes - c->max_reserved_bytes);
        over = max_u64(over, short_bytes);
        if (over)
            back += release_idle(p, over, UINT64_MAX);
        if (short_bytes > back)
            ask_for(p, short_bytes - back);
        /* Chunks have no stamp from the time before. */
        if (c->idle_timeout_ns && p->now_ns - p->stamped_since_ns > c->idle_timeout_ns)
            expired = release_idle(p, UINT64_MAX, p->now_ns - c->idle_timeout_ns);
        back += expired;
        p->stats.flushed_bytes += back;
    }
    limits_set_tick(p);
    state_leave(p);
    if (expired_bytes)
        *expired_bytes += expired;
    return back;
}
