/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See held.h.
 */
#include "shim/park/held.h"

#include "pool/bits.h"
#include "shim/driver/error.h"
#include "shim/park/receipt.h"

struct held held;

bool held_may_have(const struct context *c, int device)
{
    return pool_uses_arena(c->pool) && (device < 0 || c->device == device) &&
           !atomic_load(&c->lost_code);
}

uint64_t held_bytes_here(int device)
{
    uint64_t bytes = 0;

    FOR_EACH_CONTEXT(c) {
        struct pool_stats stats;

        if (!held_may_have(c, device))
            continue;
        pool_stats(c->pool, &stats);
        uint64_t here = stats.reserved_bytes - stats.away_bytes;
        bytes += here - min_u64(here, pool_exposed_bytes(c->pool));
    }
    return bytes;
}

static void hold_pool(struct context *c, uint64_t keep_bytes, uint64_t most_bytes, uint64_t *bytes)
{
    *bytes = 0;
    if (!context_pin(c))
        return;
    *bytes = pool_park_hold(c->pool, keep_bytes, most_bytes);
    if (*bytes)
        held.contexts[held.count++] = c;
    else
        context_unpin(c);
}

void held_take(const struct park_wish *w)
{
    uint64_t keep[DEVICES_MAX], left = w->most_bytes ? w->most_bytes : UINT64_MAX;

    for (int i = 0; i < DEVICES_MAX; i++)
        keep[i] = w->keep_bytes;
    held.count = 0;
    FOR_EACH_CONTEXT(c) {
        struct pool_stats stats;
        uint64_t bytes, *keeps = &keep[c->device % DEVICES_MAX];

        if (!left || !held_may_have(c, w->device))
            continue;
        hold_pool(c, *keeps, left == UINT64_MAX ? 0 : left, &bytes);
        pool_stats(c->pool, &stats);
        *keeps -= min_u64(*keeps, stats.reserved_bytes - stats.away_bytes - bytes);
        left -= left == UINT64_MAX ? 0 : min_u64(left, bytes);
    }
}

void held_end(bool away, struct park_receipt *r)
{
    for (size_t i = 0; i < held.count; i++) {
        uint64_t bytes = pool_park_end(held.contexts[i]->pool, away);
        struct park_gpu *g = r ? receipt_gpu(r, held.contexts[i]) : NULL;
        if (g)
            g->parked_bytes += bytes;
        context_unpin(held.contexts[i]);
    }
    held.count = 0;
}

bool held_is_lost(struct context *c, int code)
{
    if (error_is_loss((CUresult)code))
        context_look_for_loss();
    return atomic_load(&c->lost_code);
}

int held_map(void)
{
    held.count = 0;
    FOR_EACH_CONTEXT(c) {
        if (!pool_away_bytes(c->pool) || atomic_load(&c->lost_code) || !context_pin(c))
            continue;
        int code = pool_wake_begin(c->pool);
        if (!code) {
            held.contexts[held.count++] = c;
            continue;
        }
        context_unpin(c);
        if (!held_is_lost(c, code))
            return code;
    }
    return 0;
}

void held_wake_end(void)
{
    for (size_t i = 0; i < held.count; i++) {
        pool_wake_end(held.contexts[i]->pool);
        context_unpin(held.contexts[i]);
    }
    held.count = 0;
}
