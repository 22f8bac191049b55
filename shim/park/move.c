/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See move.h. The steps that it names are those of park.h.
 */
#include "shim/park/move.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/driver/error.h"
#include "shim/park/copy.h"
#include "shim/park/store.h"

#include <stdio.h>
#include <string.h>

/* A batch of copies, and the longest range in it. After each the room of the host is looked at. */
enum { PARTS_MAX = 4096 };
#define BATCH_BYTES (UINT64_C(512) << 20)

static struct store store;
static struct store_mark before; /* this park */

/* The contexts whose pools hold chunks. None of them ends meanwhile: they are pinned. */
static struct context *held[CONTEXTS_MAX];
static size_t num_held;

/* The batch. */
static struct {
    struct copy_part parts[PARTS_MAX];
    struct copy_job job;
    uint64_t size_bytes;
    CUresult code;
    char *why; /* PARK_WHY_BYTES */
} batch;

static bool is_wanted(const struct context *c, int device)
{
    return pool_uses_arena(c->pool) && (device < 0 || c->device == device) &&
           !atomic_load(&c->lost_code);
}

static void say(char *why, const char *text)
{
    snprintf(why, PARK_WHY_BYTES, "%s", text);
}

static void say_stopped(char *why)
{
    say(why, "the program used the GPU meanwhile");
}

static bool run_batch(void)
{
    if (!batch.job.num_parts)
        return true;
    enum copy_end end = copy_run(&batch.job, &batch.code);
    batch.job.num_parts = 0;
    batch.size_bytes = 0;
    if (end == COPY_STOPPED)
        say_stopped(batch.why);
    else if (end == COPY_FAILED && batch.code == CUDA_ERROR_OPERATING_SYSTEM && store.folder[0])
        snprintf(batch.why, PARK_WHY_BYTES, "the file in %.160s cannot be written", store.folder);
    else if (end == COPY_FAILED)
        snprintf(batch.why, PARK_WHY_BYTES, "a copy failed with the driver's error %d", batch.code);
    return end == COPY_DONE;
}

static bool add_part(uint64_t addr, uint64_t size_bytes, uint64_t offset)
{
    batch.parts[batch.job.num_parts++] =
        (struct copy_part){.addr = addr, .size_bytes = size_bytes, .host = store.bytes + offset};
    batch.size_bytes += size_bytes;
    return (batch.job.num_parts < PARTS_MAX && batch.size_bytes < BATCH_BYTES) || run_batch();
}

static void begin_batch(enum copy_way way, bool (*goes_on)(void), char *why)
{
    batch.job = (struct copy_job){.way = way,
                                  .parts = batch.parts,
                                  .goes_on = goes_on,
                                  .awaited = way == COPY_BACK,
                                  .in_file = store.folder[0]};
    batch.size_bytes = 0;
    batch.code = CUDA_SUCCESS;
    batch.why = why;
}

/* One range that the program may read again. */
static bool save(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct park_receipt *r = arg;

    for (uint64_t part_bytes; size_bytes; addr += part_bytes, size_bytes -= part_bytes) {
        part_bytes = min_u64(size_bytes, BATCH_BYTES);
        const struct store_row *row = store_add(&store, addr, part_bytes);
        if (!row) {
            say(r->why, "the program took more memory meanwhile");
            return false;
        }
        if (!store_make_usable(&store, r->why, sizeof r->why) ||
            !add_part(addr, part_bytes, row->offset))
            return false;
    }
    return true;
}

/* What a park would copy of a pool, about. kept: by device, what stays there so far. */
static uint64_t live_bytes(const struct park_wish *w, const struct context *c, uint64_t kept[])
{
    struct pool_stats stats;
    uint64_t *keep = &kept[c->device % DEVICES_MAX];

    if (!is_wanted(c, w->device))
        return 0;
    pool_stats(c->pool, &stats);
    uint64_t here = min_u64(stats.allocated_bytes, stats.reserved_bytes - stats.away_bytes);
    uint64_t stays = min_u64(here, w->keep_bytes - *keep);
    *keep += stays;
    return here - stays;
}

static uint64_t estimate(const struct park_wish *w, uint64_t *total_bytes)
{
    uint64_t live = 0, kept[DEVICES_MAX] = {0};

    FOR_EACH_CONTEXT(c) {
        *total_bytes += c->backend.base.total_bytes;
        live += live_bytes(w, c, kept);
    }
    return w->most_bytes ? min_u64(live, w->most_bytes) : live;
}

/* The first bytes of the store are there. */
static bool fill_until(uint64_t until, bool (*goes_on)(void), char *why)
{
    while (store.usable_bytes < until) {
        uint64_t from = store.usable_bytes;
        enum copy_end end = COPY_DONE;

        if (!store_extend(&store, until, why, PARK_WHY_BYTES))
            return false;
        if (!store.folder[0])
            end = copy_touch(store.bytes + from, store.usable_bytes - from, goes_on);
        if (end == COPY_STOPPED)
            say_stopped(why);
        else if (end == COPY_FAILED)
            say(why, "the kernel refuses the process more host memory");
        if (end != COPY_DONE)
            return false;
    }
    return true;
}

/* The store has what is awaited: that of each pool where the threads of its device touched it. */
static bool fill(const struct park_wish *w, bool (*goes_on)(void), char *why)
{
    uint64_t until = store.used_bytes, end = until + store.awaited_bytes, kept[DEVICES_MAX] = {0};

    if (store.folder[0])
        return fill_until(end, goes_on, why);
    FOR_EACH_CONTEXT(c) {
        until = min_u64(end, until + live_bytes(w, c, kept));
        copy_near(c->device);
        if (copy_can_touch() && !fill_until(until, goes_on, why))
            return false;
    }
    return true;
}

/* A context that lives, for calls that need any. NULL: there is none. */
static struct context *pin_any(void)
{
    FOR_EACH_CONTEXT(c) {
        if (!atomic_load(&c->lost_code) && context_pin(c))
            return c;
    }
    return NULL;
}

bool move_prepare(const struct park_wish *w, bool ahead, bool (*goes_on)(void),
                  struct park_receipt *r)
{
    uint64_t total_bytes = 0, awaited_bytes = estimate(w, &total_bytes);
    bool prepared = false;

    if (!store_begin(&store, w->to, total_bytes, awaited_bytes, r->why, sizeof r->why))
        return false;
    before = store_mark(&store);
    struct context *c = pin_any();
    if (c) {
        prepared = copy_begin(atomic_load(&c->ctx));
        context_unpin(c);
    }
    if (!prepared)
        say(r->why, "the process has no host memory for the copies");
    if (prepared && (!(ahead || store.folder[0]) || fill(w, goes_on, r->why)))
        return true;
    store_cut(&store, before);
    return false;
}

static struct park_gpu *gpu_of(struct park_receipt *r, const struct context *c)
{
    for (unsigned i = 0; i < r->num_gpus; i++)
        if (r->gpus[i].device == c->device)
            return &r->gpus[i];
    if (r->num_gpus == PARK_GPUS_MAX)
        return NULL;
    struct park_gpu *g = &r->gpus[r->num_gpus++];
    *g = (struct park_gpu){.device = c->device, .uuid = c->uuid.text};
    return g;
}

static void hold(struct context *c, uint64_t keep_bytes, uint64_t most_bytes, uint64_t *bytes)
{
    *bytes = 0;
    if (!context_pin(c))
        return;
    *bytes = pool_park_hold(c->pool, keep_bytes, most_bytes);
    if (*bytes)
        held[num_held++] = c;
    else
        context_unpin(c);
}

static void hold_all(const struct park_wish *w)
{
    uint64_t keep[DEVICES_MAX], left = w->most_bytes ? w->most_bytes : UINT64_MAX;

    for (int i = 0; i < DEVICES_MAX; i++)
        keep[i] = w->keep_bytes;
    num_held = 0;
    FOR_EACH_CONTEXT(c) {
        struct pool_stats stats;
        uint64_t bytes, *keeps = &keep[c->device % DEVICES_MAX];

        if (!left || !is_wanted(c, w->device))
            continue;
        hold(c, *keeps, left == UINT64_MAX ? 0 : left, &bytes);
        pool_stats(c->pool, &stats);
        *keeps -= min_u64(*keeps, stats.reserved_bytes - stats.away_bytes - bytes);
        left -= left == UINT64_MAX ? 0 : min_u64(left, bytes);
    }
}

bool move_out(const struct park_wish *w, bool (*goes_on)(void), struct park_receipt *r)
{
    bool done = true;

    hold_all(w);
    begin_batch(COPY_OUT, goes_on, r->why);
    for (size_t i = 0; i < num_held && done; i++) {
        uint64_t used = store.used_bytes;

        copy_near(held[i]->device);
        copy_open(atomic_load(&held[i]->ctx));
        done = pool_park_each(held[i]->pool, save, r) && run_batch();
        copy_close();
        struct park_gpu *g = gpu_of(r, held[i]);
        if (g)
            g->live_bytes += store.used_bytes - used;
    }
    return done;
}

/* The held chunks go away, or are let go. */
static void end_holds(bool away, struct park_receipt *r)
{
    for (size_t i = 0; i < num_held; i++) {
        uint64_t bytes = pool_park_end(held[i]->pool, away);
        struct park_gpu *g = r ? gpu_of(r, held[i]) : NULL;
        if (g)
            g->parked_bytes += bytes;
        context_unpin(held[i]);
    }
    num_held = 0;
}

/* Rows of memory that the driver did not unmap would be there twice after the next park. */
void move_release(struct park_receipt *r)
{
    end_holds(true, r);
    store_keep(&store, before, pool_is_away);
}

void move_settle(void)
{
    store_settle(&store);
}

void move_undo(void)
{
    end_holds(false, NULL);
    if (store.bytes)
        store_cut(&store, before);
}

void move_needs(uint64_t needs_bytes[])
{
    memset(needs_bytes, 0, DEVICES_MAX * sizeof needs_bytes[0]);
    FOR_EACH_CONTEXT(c) {
        if (c->device >= 0 && c->device < DEVICES_MAX && !atomic_load(&c->lost_code))
            needs_bytes[c->device] += pool_away_bytes(c->pool);
    }
}

/* Is it the error of a context that will serve nothing any more? Then its memory needs no wake. */
static bool is_lost(struct context *c, int code)
{
    if (error_is_loss((CUresult)code))
        context_look_for_loss();
    return atomic_load(&c->lost_code);
}

/* All pools with chunks away have their device memory again, or the code of the first that has not.
 */
static int map_all(void)
{
    num_held = 0;
    FOR_EACH_CONTEXT(c) {
        if (!pool_away_bytes(c->pool) || atomic_load(&c->lost_code) || !context_pin(c))
            continue;
        int code = pool_wake_begin(c->pool);
        if (!code) {
            held[num_held++] = c;
            continue;
        }
        context_unpin(c);
        if (!is_lost(c, code))
            return code;
    }
    return 0;
}

/* One range that is live now: the bytes of it that the store has. */
static bool restore(void *arg, uint64_t addr, uint64_t size_bytes)
{
    const struct store_row *row;
    uint64_t end = addr + size_bytes;

    (void)arg;
    while (addr < end && (row = store_find(&store, addr, end)) != NULL) {
        uint64_t from = max_u64(addr, row->addr), to = min_u64(end, row->addr + row->size_bytes);

        if (!add_part(from, to - from, row->offset + (from - row->addr)))
            return false;
        addr = to;
    }
    return true;
}

static int copy_all_back(void)
{
    char why[PARK_WHY_BYTES];

    begin_batch(COPY_BACK, NULL, why);
    for (size_t i = 0; i < num_held; i++) {
        copy_near(held[i]->device);
        copy_open(atomic_load(&held[i]->ctx));
        bool done = pool_park_each(held[i]->pool, restore, NULL) && run_batch();
        copy_close();
        batch.job.num_parts = 0;
        if (!done && !is_lost(held[i], batch.code))
            return batch.code ? (int)batch.code : CUDA_ERROR_OPERATING_SYSTEM;
    }
    return 0;
}

int move_back(void)
{
    int code = map_all();

    if (!code)
        code = copy_all_back();
    if (!code && !store_is_whole(&store))
        code = CUDA_ERROR_OPERATING_SYSTEM;
    if (code) {
        end_holds(true, NULL); /* step 6 */
        return code;
    }
    for (size_t i = 0; i < num_held; i++) {
        pool_wake_end(held[i]->pool);
        context_unpin(held[i]);
    }
    num_held = 0;
    return 0;
}

void move_unstage(bool is_idle)
{
    struct context *c = is_idle ? pin_any() : NULL;

    copy_finish(c ? atomic_load(&c->ctx) : NULL);
    if (c)
        context_unpin(c);
}

const char *move_place(void)
{
    return store.folder[0] ? store.folder : "host";
}

void move_finish(void)
{
    store_free(&store);
}

void move_tell(const struct park_wish *w, struct park_receipt *r)
{
    FOR_EACH_CONTEXT(c) {
        struct park_gpu *g;
        struct pool_stats stats;

        if ((w && w->device >= 0 && c->device != w->device) || !(g = gpu_of(r, c)))
            continue;
        pool_stats(c->pool, &stats);
        uint64_t here = stats.reserved_bytes - stats.away_bytes;
        g->away_bytes += stats.away_bytes;
        if (!w)
            continue;
        if (!pool_uses_arena(c->pool)) {
            g->segment_bytes += here;
            continue;
        }
        uint64_t exposed = min_u64(pool_exposed_bytes(c->pool), here);
        g->exposed_bytes += exposed;
        *(w->keep_bytes || w->most_bytes ? &g->kept_bytes : &g->other_bytes) += here - exposed;
    }
}
