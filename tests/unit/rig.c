/* SPDX-License-Identifier: BSD-2-Clause */
/* See rig.h. */
#include "tests/unit/rig.h"
#include "pool/magazine_pool.h"
#include "pool/state.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

static unsigned rigs; /* pools that are started and not abandoned */

#define SAY(r, ...) ((r)->log ? fprintf((r)->log, __VA_ARGS__) : 0)

static void blame(struct rig *r, const char *words)
{
    if (!r->error)
        r->error = words;
}

struct rig *rig_create(uint64_t capacity_bytes)
{
    struct rig *r = calloc(1, sizeof *r);
    r->model = model_create(capacity_bytes);
    pool_config_init(&r->config);
    return r;
}

struct rig *rig_in(uint64_t capacity_bytes, bool segments, bool single)
{
    struct rig *r = rig_create(capacity_bytes);
    r->config.backing = segments ? BACKING_SEGMENT : BACKING_ARENA;
    r->model->backend.single_stream = single;
    return r;
}

void rig_start(struct rig *r)
{
    r->pool = pool_create(&r->model->backend, &r->config, r);
    if (!r->pool)
        blame(r, "a pool is made");
    r->several_streams = !r->model->backend.single_stream;
    rigs += r->pool != NULL;
}

void rig_hook(struct rig *r, void (*hook)(struct model *m, enum model_row row), void *arg)
{
    r->model->hook_arg = arg;
    r->model->hook = hook;
}

static void add_block(struct rig *r, uint64_t addr, uint64_t size_bytes)
{
    if (r->count == r->room) {
        r->room = r->room ? r->room * 2 : 64;
        r->blocks = realloc(r->blocks, r->room * sizeof *r->blocks);
    }
    if (rig_find(r, addr, size_bytes))
        blame(r, "live blocks do not overlap");
    r->blocks[r->count++] =
        (struct rig_block){.addr = addr, .size_bytes = size_bytes, .owner = ++r->owners};
}

uint64_t rig_alloc(struct rig *r, uint64_t size_bytes)
{
    uint64_t addr = 0;
    struct pool_block block;
    r->code = 0;
    r->status = pool_alloc(r->pool, size_bytes, &addr, &r->code);
    SAY(r, "alloc %#" PRIx64 ": status %d, %#" PRIx64 "\n", size_bytes, r->status, addr);
    if ((r->status == POOL_NOMEM || r->status == POOL_LIMIT) && !r->code)
        blame(r, "a request that fails for want of memory has the driver's code");
    if (r->status == POOL_NOMEM)
        pool_note_nomem(r->pool, r->driver_serves);
    if (r->status != POOL_OK)
        return 0;
    if (!addr || addr % 512)
        blame(r, "memory is aligned to 512 bytes");
    if (pool_lookup(addr, &block) != POOL_OK || block.addr != addr || block.pool != r->pool ||
        block.requested_bytes != size_bytes || block.size_bytes < size_bytes)
        blame(r, "what was handed out is found, as it was asked for");
    if (pool_lookup(addr + size_bytes - 1, &block) != POOL_OK || block.addr != addr)
        blame(r, "the last byte belongs to the block");
    r->model->may_be_away = pool_away_bytes(r->pool) > 0;
    for (uint64_t at = addr; at < addr + size_bytes; at += MODEL_GRANULE_BYTES) {
        bool there = model_is_there(r->model, at), both = there && r->wakes;
        if (r->model->may_be_away && there == pool_is_away(at) && !both)
            blame(r, "what is handed out is there, or away");
    }
    model_check_handed_out(r->model, addr, size_bytes, r->several_streams ? -1 : (int)r->single);
    add_block(r, addr, size_bytes);
    return addr;
}

static struct rig_block *block_at(struct rig *r, uint64_t addr)
{
    struct rig_block *b = rig_find(r, addr, 1);
    if (b && b->addr == addr)
        return b;
    blame(r, "the test frees and uses what is live");
    return NULL;
}

void rig_free(struct rig *r, uint64_t addr)
{
    struct rig_block *b = block_at(r, addr);
    if (!b)
        return;
    *b = r->blocks[--r->count];
    model_note_free(r->model);
    SAY(r, "free %#" PRIx64 "\n", addr);
    if (pool_free(addr) != POOL_OK)
        blame(r, "a live block can be freed");
    if (atomic_load(&pool_release_due))
        pool_release_at_free(addr);
}

void rig_free_all(struct rig *r)
{
    while (r->count)
        rig_free(r, r->blocks[r->count - 1].addr);
}

void rig_alloc_all(struct rig *r, uint64_t *addrs, unsigned count, uint64_t size_bytes)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t addr = rig_alloc(r, size_bytes);
        if (addrs)
            addrs[i] = addr;
    }
}

void rig_free_every(struct rig *r, const uint64_t *addrs, unsigned first, unsigned end,
                    unsigned step)
{
    for (unsigned i = first; i < end; i += step)
        rig_free(r, addrs[i]);
}

/* Before a use of the block at addr (0: of none). False: it is not used, because memory did not
 * come back, or because another thread freed the block meanwhile. */
static bool wake_for(struct rig *r, uint64_t addr)
{
    struct rig_block *b = addr ? block_at(r, addr) : NULL;
    uint64_t owner = b ? b->owner : 0;
    if (!pool_away_bytes(r->pool))
        return true;
    if (rig_wake(r))
        return false;
    b = addr ? rig_find(r, addr, 1) : NULL;
    return !addr || (b && b->owner == owner);
}

void rig_expose(struct rig *r, uint64_t addr)
{
    if (!wake_for(r, addr))
        return;
    struct rig_block *b = block_at(r, addr);
    if (!b || pool_expose(addr + b->size_bytes / 2) != POOL_OK)
        blame(r, "a live block can be exposed");
    else
        b->exposed = true;
}

void rig_launch(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t addr)
{
    if (!wake_for(r, addr))
        return;
    struct rig_block *b = addr ? block_at(r, addr) : NULL;
    SAY(r, "launch on %u for %" PRIu64 " ns, %#" PRIx64 "\n", stream, duration_ns, addr);
    if (stream != r->run_stream) {
        r->run_stream = stream;
        r->run_mark = pool_mark(r->pool);
    }
    if (stream != r->single && !r->several_streams) {
        bool allowed = r->model->late_allowed;
        /* Rare, and safety goes before liveness. */
        r->model->late_allowed = true;
        pool_leave_single_stream(r->pool);
        r->model->late_allowed = allowed;
        r->several_streams = true;
    }
    if (atomic_load(&pool_watch))
        pool_submit(r->pool, stream);
    if (b && r->has_bytes)
        rig_write(r, b);
    if (b)
        model_submit(r->model, stream, duration_ns, b->addr, b->size_bytes, b->owner);
    else
        model_submit(r->model, stream, duration_ns, 0, 0, 0);
}

void rig_free_behind(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t addr)
{
    rig_launch(r, stream, duration_ns, addr);
    rig_free(r, addr);
}

uint64_t rig_pending(struct rig *r, unsigned stream, uint64_t duration_ns, uint64_t size_bytes)
{
    uint64_t addr = rig_alloc(r, size_bytes);
    rig_free_behind(r, stream, duration_ns, addr);
    return addr;
}

uint64_t rig_freed(struct rig *r, uint64_t size_bytes)
{
    uint64_t addr = rig_alloc(r, size_bytes);
    rig_free(r, addr);
    return addr;
}

bool rig_enter_single(struct rig *r)
{
    if (r->several_streams && pool_passed(r->pool, r->run_mark) &&
        pool_enter_single_stream(r->pool, r->run_mark, r->run_stream << 3, &r->breached)) {
        SAY(r, "stream %u alone from here on\n", r->run_stream);
        r->several_streams = false;
        r->single = r->run_stream;
        return true;
    }
    return false;
}

void rig_empty_magazines(struct rig *r)
{
    state_lock(r->pool);
    magazines_empty_all(r->pool);
    state_unlock(r->pool);
}

uint64_t rig_trim(struct rig *r, uint64_t keep_bytes, bool wait)
{
    bool allowed = r->model->late_allowed;
    SAY(r, "trim, keep %#" PRIx64 ", %s\n", keep_bytes, wait ? "wait" : "do not wait");
    struct pool_trim trim = {.keep_bytes = keep_bytes, .wait_ns = wait ? MS(1000000) : 0};
    /* The control thread may wait for anything, for a bounded time. */
    r->model->late_allowed = allowed || wait;
    uint64_t back = pool_trim(r->pool, &trim);
    r->model->late_allowed = allowed;
    return back;
}

void rig_settle(struct rig *r)
{
    rig_launch(r, 0, 0, 0);
    rig_trim(r, GIB(1), true);
}

const char *rig_check(struct rig *r)
{
    const char *words = r->error;
    if (!words)
        words = model_error(r->model);
    if (!words && r->pool)
        words = pool_check(r->pool);
    if (!words && r->pool && !r->model->context_gone &&
        rig_stats(r).reserved_bytes - pool_away_bytes(r->pool) != model_used_bytes(r->model))
        words = "what is reserved, and not away, is what the driver gave";
    return words;
}

struct pool_stats rig_stats(struct rig *r)
{
    struct pool_stats stats;
    pool_stats(r->pool, &stats);
    return stats;
}

static void give_everything_back(struct rig *r)
{
    model_fail(r->model, MODEL_ANY, 0, 0);
    r->model->hook = NULL;
    while (r->model->captures)
        model_capture_end(r->model);
    model_end_forever(r->model);
    rig_free_all(r);
    model_drain(r->model);
    rig_wake(r);
    rig_trim(r, 0, true);
    struct pool_stats stats = rig_stats(r);
    if (stats.allocated_bytes || stats.requested_bytes || stats.live_blocks)
        blame(r, "nothing is live when everything has been freed");
    if (r->lost)
        return;
    if (stats.pending_bytes)
        blame(r, "nothing is pending when all work is complete");
    if (stats.reserved_bytes)
        blame(r, "everything idle goes back to the driver");
    if (model_used_bytes(r->model))
        blame(r, "the driver has everything back");
}

const char *rig_destroy(struct rig *r)
{
    const char *words = rig_check(r);
    if (r->pool) {
        bool abandoned = r->model->context_gone;
        if (!abandoned)
            give_everything_back(r);
        words = words ? words : rig_check(r);
        model_destroy_context(r->model);
        pool_abandon(r->pool);
        words = words ? words : rig_check(r);
        words = words ? words : model_leak(r->model);
        if (--rigs == 0 && !words && atomic_load(&pool_watch))
            words = "no pool watches submissions when it is gone";
    }
    model_destroy(r->model);
    free(r->blocks);
    free(r->saved);
    free(r);
    return words;
}
