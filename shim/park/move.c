/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See move.h. The steps that it names are those of park.h.
 */
#include "shim/park/move.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/option/in_force.h"
#include "shim/park/batch.h"
#include "shim/park/hasher.h"
#include "shim/park/held.h"
#include "shim/park/receipt.h"
#include "shim/park/retain.h"
#include "shim/park/store.h"
#include "shim/park/store_file.h"
#include "shim/stats/counters.h"

#include <stdio.h>
#include <string.h>

/* How often retained copies are looked at: a program that takes host memory faster than a twentieth
 * of it in this time may find none. */
#define TEND_NS SEC_NS

static struct store store;
static struct store_mark before; /* this park */
static _Atomic uint64_t retained_bytes;
static bool by_pages; /* the park copies whole ones */

static void say_why(char *why, const char *text)
{
    snprintf(why, PARK_WHY_BYTES, "%s", text);
}

static void say_stopped(char *why)
{
    say_why(why, "the program used the GPU meanwhile");
}

/* One range that the program may read again. */
static bool save(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct park_receipt *r = arg;

    for (uint64_t part_bytes; size_bytes; addr += part_bytes, size_bytes -= part_bytes) {
        part_bytes = min_u64(size_bytes, BATCH_BYTES);
        const struct store_row *row = store_add(&store, addr, part_bytes);
        if (!row) {
            say_why(r->why, "the program took more memory meanwhile");
            return false;
        }
        if (!store_make_usable(&store, r->why, sizeof r->why) ||
            !batch_add(addr, part_bytes, row->offset))
            return false;
    }
    return true;
}

/* What a park would copy of a pool, about. kept: by device, what stays there so far. */
static uint64_t live_bytes(const struct park_wish *w, const struct context *c, uint64_t kept[])
{
    struct pool_stats stats;
    uint64_t *keep = &kept[c->device % DEVICES_MAX];

    if (!held_may_have(c, w->device))
        return 0;
    pool_stats(c->pool, &stats);
    uint64_t here = stats.reserved_bytes - stats.away_bytes;
    if (!by_pages)
        here = min_u64(here, stats.allocated_bytes);
    uint64_t stays = min_u64(here, w->keep_bytes - *keep);
    *keep += stays;
    return here - stays;
}

static uint64_t estimate(const struct park_wish *w)
{
    uint64_t live = 0, kept[DEVICES_MAX] = {0};

    FOR_EACH_CONTEXT(c) {
        live += live_bytes(w, c, kept);
    }
    return w->most_bytes ? min_u64(live, w->most_bytes) : live;
}

static uint64_t device_bytes(void)
{
    uint64_t bytes = 0;

    FOR_EACH_CONTEXT(c) {
        bytes += c->backend.base.total_bytes;
    }
    return bytes;
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
            say_why(why, "the kernel refuses the process more host memory");
        if (end != COPY_DONE)
            return false;
    }
    return true;
}

/* The store has what is awaited: that of each pool where the threads of its device touched it. */
static bool fill_awaited(const struct park_wish *w, bool (*goes_on)(void), char *why)
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

/* Makes the store, or goes on with the one that is there. Copies are retained in host memory. */
static bool begin_store(const struct park_wish *w, bool joins, struct park_receipt *r)
{
    uint64_t total_bytes = device_bytes();
    bool retains = !joins && !w->to[0] && in_force()->park.retain_bytes;

    /* A folder that is refused costs no retained copy. */
    if (retain_is_on() && !joins && w->to[0] && !store_file_allowed(w->to, r->why, sizeof r->why))
        return false;
    if (!joins && (!retains || store.size_bytes < total_bytes))
        move_drop();
    by_pages = retains || retain_is_on();
    uint64_t awaited_bytes = estimate(w);
    if (!joins)
        awaited_bytes -= min_u64(awaited_bytes, store.used_bytes);
    bool was = store.bytes;
    if (!store_begin(&store, w->to, total_bytes, awaited_bytes, r->why, sizeof r->why))
        return false;
    if (retains && !was)
        retain_begin(&store);
    return true;
}

static void load_hashers(const struct park_wish *w)
{
    FOR_EACH_CONTEXT(c) {
        if (held_may_have(c, w->device) && context_pin(c)) {
            hasher_load(c);
            context_unpin(c);
        }
    }
}

bool move_prepare(const struct park_wish *w, bool joins, bool ahead, bool (*goes_on)(void),
                  struct park_receipt *r)
{
    bool prepared = false;

    if (!begin_store(w, joins, r))
        return false;
    store.goes_on = goes_on;
    before = store_mark(&store);
    struct context *c = pin_any();
    if (c) {
        /* A wake copies what is away in all. */
        prepared = copy_begin(atomic_load(&c->ctx), estimate(w) + (joins ? store.used_bytes : 0));
        context_unpin(c);
    }
    if (!prepared)
        say_why(r->why, "the process has no host memory for the copies");
    if (prepared && retain_is_on() && !joins)
        load_hashers(w);
    if (prepared && (!(ahead || store.folder[0]) || fill_awaited(w, goes_on, r->why)))
        return true;
    if (!retain_is_on()) /* of those move_finish frees what is too much */
        store_cut(&store, before);
    return false;
}

static void count_saved(struct park_gpu *g, uint64_t saved_bytes, uint64_t copied_bytes)
{
    if (!g)
        return;
    g->live_bytes += saved_bytes;
    g->copied_bytes += copied_bytes;
}

static bool list_range(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct park_receipt *r = arg;
    bool listed = retain_list(addr, size_bytes);

    if (!listed)
        say_why(r->why, "the program took more memory meanwhile");
    return listed;
}

static bool copy_pages(size_t first, size_t end, struct park_receipt *r)
{
    for (size_t i = first; i < end; i++) {
        struct store_row to;

        if (!retain_has_bytes(i) && (!retain_place(&store, i, &to, r->why, sizeof r->why) ||
                                     !batch_add(to.addr, to.size_bytes, to.offset)))
            return false;
    }
    return batch_run();
}

/* Copies the listed pages of a context whose bytes the store has not. */
static bool save_pages(const struct context *c, size_t first, size_t end, struct park_receipt *r)
{
    uint64_t copied_bytes = 0, saved_bytes = (end - first) * HASH_PAGE_BYTES;

    for (size_t i = first; i < end; i++)
        copied_bytes += retain_has_bytes(i) ? 0 : HASH_PAGE_BYTES;
    if (copied_bytes) {
        copy_near(c->device);
        copy_open(atomic_load(&c->ctx));
        bool done = copy_pages(first, end, r);
        copy_close();
        if (!done)
            return false;
        retain_saved(first, end);
    }
    counter_add(COUNTER_PARK_RETAINED, saved_bytes - copied_bytes);
    count_saved(receipt_gpu(r, c), saved_bytes, copied_bytes);
    return true;
}

/* The same as save_all for a store of pages: all are listed and hashed before any is copied. */
static bool save_what_differs(bool (*goes_on)(void), struct park_receipt *r)
{
    static size_t ends[CONTEXTS_MAX]; /* of each context's pages */
    bool done = true;

    retain_list_begin();
    for (size_t i = 0; i < held.count && done; i++) {
        size_t first = retain_num_pages();

        done = pool_park_each(held.contexts[i]->pool, list_range, r);
        retain_hash(held.contexts[i], first, goes_on);
        ends[i] = retain_num_pages();
    }
    if (done && !goes_on()) { /* before anything is forgotten for a copy */
        say_stopped(r->why);
        done = false;
    }
    if (done)
        retain_match(&store);
    for (size_t i = 0; i < held.count && done; i++)
        done = save_pages(held.contexts[i], i ? ends[i - 1] : 0, ends[i], r);
    return done;
}

static bool save_all(struct park_receipt *r)
{
    bool done = true;

    for (size_t i = 0; i < held.count && done; i++) {
        uint64_t used = store.used_bytes;

        copy_near(held.contexts[i]->device);
        copy_open(atomic_load(&held.contexts[i]->ctx));
        done = pool_park_each(held.contexts[i]->pool, save, r) && batch_run();
        copy_close();
        used = store.used_bytes - used;
        count_saved(receipt_gpu(r, held.contexts[i]), used, used);
    }
    return done;
}

bool move_out(const struct park_wish *w, bool (*goes_on)(void), struct park_receipt *r)
{
    store.goes_on = goes_on;
    held_take(w);
    batch_begin(&store, COPY_OUT, goes_on, r->why);
    return retain_is_on() ? save_what_differs(goes_on, r) : save_all(r);
}

/* Rows of memory that the driver did not unmap would be there twice after the next park. */
void move_release(struct park_receipt *r)
{
    held_end(true, r);
    if (retain_is_on())
        retain_left(pool_is_away);
    else
        store_keep(&store, before, pool_is_away);
    atomic_store(&retained_bytes, 0);
}

void move_settle(void)
{
    store_settle(&store);
}

void move_let_go(void)
{
    held_end(false, NULL);
}

void move_forget(void)
{
    if (retain_is_on())
        retain_undo();
    else if (store.bytes)
        store_cut(&store, before);
}

void move_needs(uint64_t needs_bytes[])
{
    memset(needs_bytes, 0, DEVICES_MAX * sizeof needs_bytes[0]);
    FOR_EACH_CONTEXT(c) {
        if (c->device < 0 || c->device >= DEVICES_MAX || atomic_load(&c->lost_code) ||
            !context_pin(c))
            continue;
        needs_bytes[c->device] += pool_wake_bytes(c->pool);
        context_unpin(c);
    }
}

/* One range that is live now: the bytes of it that the store has. */
static bool restore_range(void *reads, uint64_t addr, uint64_t size_bytes)
{
    const struct store_row *row;
    uint64_t end = addr + size_bytes;

    while (addr < end && (row = store_find(&store, addr, end)) != NULL) {
        uint64_t from = max_u64(addr, row->addr), to = min_u64(end, row->addr + row->size_bytes);

        *(bool *)reads = true;
        if ((!retain_is_on() || retain_is_away(row)) &&
            !batch_add(from, to - from, row->offset + (from - row->addr)))
            return false;
        addr = to;
    }
    return true;
}

/* *reads: the program has memory whose bytes the store has. */
static int copy_all_back(bool *reads)
{
    char why[PARK_WHY_BYTES];

    batch_begin(&store, COPY_BACK, NULL, why);
    for (size_t i = 0; i < held.count; i++) {
        copy_near(held.contexts[i]->device);
        copy_open(atomic_load(&held.contexts[i]->ctx));
        bool done = pool_park_each(held.contexts[i]->pool, restore_range, reads) && batch_run();
        copy_close();
        batch_clear();
        if (!done && !held_is_lost(held.contexts[i], (int)batch_code()))
            return batch_code() ? (int)batch_code() : CUDA_ERROR_OPERATING_SYSTEM;
    }
    return 0;
}

int move_back(void)
{
    int code = held_map();
    bool reads = false;

    if (!code)
        code = copy_all_back(&reads);
    if (!code && reads && !store_is_whole(&store)) /* what nobody needs may be lost */
        code = CUDA_ERROR_OPERATING_SYSTEM;
    if (code) {
        held_end(true, NULL); /* step 6 */
        return code;
    }
    held_wake_end();
    /* The gate is still closed: who drops the copy as soon as it opens finds that there is one. */
    atomic_store(&retained_bytes, store.used_bytes);
    return 0;
}

void move_pin(bool pins)
{
    struct context *c = pin_any();

    if (c && pins)
        copy_begin(atomic_load(&c->ctx), 0);
    else if (c)
        copy_unpin(atomic_load(&c->ctx));
    if (c)
        context_unpin(c);
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

void move_drop(void)
{
    retain_end();
    store_free(&store);
    atomic_store(&retained_bytes, 0);
}

/* The store keeps what it may. */
static void keep(uint64_t most_bytes)
{
    retain_keep(&store, most_bytes, clock_now_ns());
    if (!store.num_rows)
        move_drop();
    atomic_store(&retained_bytes, store.used_bytes);
}

void move_finish(void)
{
    hasher_finish();
    if (!retain_is_on()) {
        move_drop();
        return;
    }
    keep(in_force()->park.retain_bytes);
}

uint64_t move_tend(uint64_t now_ns)
{
    uint64_t most_bytes = in_force()->park.retain_bytes;

    if (!store.bytes)
        return UINT64_MAX;
    if (retain_is_over(now_ns) || store_is_tight("")) {
        move_drop();
        return UINT64_MAX;
    }
    if (store.used_bytes > most_bytes)
        keep(most_bytes);
    return store.bytes ? now_ns + TEND_NS : UINT64_MAX;
}

uint64_t move_retained_bytes(void)
{
    return atomic_load(&retained_bytes);
}
