/* SPDX-License-Identifier: BSD-2-Clause */
/* The rig parks and wakes: see rig_park in rig.h. */
#include "tests/unit/rig.h"

#include <inttypes.h>
#include <stdlib.h>

#define UNIT UINT64_C(512)
#define SAMPLES 12

static void blame(struct rig *r, const char *words)
{
    if (!r->error)
        r->error = words;
}

/* Units of a block in which its mark stands: the ends, around the borders of the first granules,
 * and some between. */
static unsigned sample(const struct rig_block *b, uint64_t at[SAMPLES])
{
    uint64_t units = (b->size_bytes + UNIT - 1) / UNIT, end = b->addr + units * UNIT;
    uint64_t border = (b->addr / MODEL_GRANULE_BYTES + 1) * MODEL_GRANULE_BYTES;
    unsigned count = 0;
    at[count++] = b->addr;
    at[count++] = end - UNIT;
    for (uint64_t i = 1; i <= 4; i++)
        at[count++] = b->addr + units * i / 5 * UNIT;
    for (unsigned i = 0; i < 3 && border < end; i++, border += MODEL_GRANULE_BYTES) {
        at[count++] = border - UNIT;
        at[count++] = border;
    }
    return count;
}

void rig_write(struct rig *r, struct rig_block *b)
{
    uint64_t at[SAMPLES];
    unsigned count = sample(b, at);
    for (unsigned i = 0; i < count; i++)
        model_write(r->model, at[i], (uint32_t)b->owner);
    b->written = true;
}

uint64_t rig_written(struct rig *r, uint64_t size_bytes)
{
    uint64_t addr = rig_alloc(r, size_bytes);
    rig_write(r, &r->blocks[r->count - 1]);
    return addr;
}

void rig_check_bytes(struct rig *r)
{
    for (uint32_t k = 0; k < r->count; k++) {
        const struct rig_block *b = &r->blocks[k];
        uint64_t at[SAMPLES];
        unsigned count = b->written ? sample(b, at) : 0;
        for (unsigned i = 0; i < count; i++)
            if (model_read(r->model, at[i]) != (uint32_t)b->owner)
                blame(r, "the program reads what it wrote");
    }
}

/* One walk of the pool over held memory. */
struct walk {
    struct rig *r;
    uint64_t end;           /* of the range before */
    size_t next;            /* waking: the first saved unit that is not behind the walk */
    struct rig_saved *here; /* parking: what is saved now */
    size_t count, room;
};

static void save(void *arg, uint64_t addr, uint32_t mark)
{
    struct walk *w = arg;
    if (w->count == w->room) {
        w->room = w->room ? 2 * w->room : 256;
        w->here = realloc(w->here, w->room * sizeof *w->here);
    }
    w->here[w->count++] = (struct rig_saved){addr, mark};
}

static void look_at_range(struct walk *w, uint64_t addr, uint64_t size_bytes)
{
    if (!size_bytes || addr < w->end || addr % UNIT || size_bytes % UNIT)
        blame(w->r, "ranges to keep are whole units, in the order of addresses");
    w->end = addr + size_bytes;
    if (w->r->park_hook)
        w->r->park_hook(w->r);
}

static bool copy_out(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct walk *w = arg;
    look_at_range(w, addr, size_bytes);
    model_each_mark(w->r->model, addr, size_bytes, save, w);
    return true;
}

static void nothing(void *arg, uint64_t addr, uint32_t mark)
{
}

static bool copy_back(void *arg, uint64_t addr, uint64_t size_bytes)
{
    struct walk *w = arg;
    struct rig *r = w->r;
    look_at_range(w, addr, size_bytes);
    model_each_mark(r->model, addr, size_bytes, nothing, NULL); /* all of it is there */
    for (; w->next < r->saved_count && r->saved[w->next].addr < addr + size_bytes; w->next++)
        if (r->saved[w->next].addr >= addr)
            model_write(r->model, r->saved[w->next].addr, r->saved[w->next].mark);
    return true;
}

static int by_addr(const void *a, const void *b)
{
    const struct rig_saved *x = a, *y = b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

/* What is saved now joins what is away. */
static void join(struct rig *r, struct walk *w)
{
    struct rig_saved *all = malloc((r->saved_count + w->count + 1) * sizeof *all);
    size_t count = 0;
    for (size_t i = 0; i < w->count; i++)
        all[count++] = w->here[i];
    for (size_t i = 0; i < r->saved_count; i++)
        all[count++] = r->saved[i];
    qsort(all, count, sizeof *all, by_addr);
    for (size_t i = 1; i < count; i++)
        if (all[i].addr == all[i - 1].addr)
            blame(r, "no address is named by two parks");
    free(r->saved);
    r->saved = all;
    r->saved_count = count;
}

uint64_t rig_park(struct rig *r, uint64_t keep_bytes, uint64_t most_bytes, bool cancel)
{
    struct walk w = {.r = r};
    bool allowed = r->model->late_allowed;
    uint64_t before = pool_away_bytes(r->pool), gone = 0;
    model_end_forever(r->model);
    model_drain(r->model);
    if (!before)
        rig_check_bytes(r);
    r->model->late_allowed = true; /* nothing is left to wait for */
    uint64_t held = pool_park_hold(r->pool, keep_bytes, most_bytes);
    r->model->late_allowed = allowed;
    if (held && !pool_park_each(r->pool, copy_out, &w))
        blame(r, "a walk goes on until it is told to stop");
    gone = held ? pool_park_end(r->pool, !cancel) : 0;
    if (r->log)
        fprintf(r->log, "park: %#" PRIx64 " held, %#" PRIx64 " away, %zu marks\n", held, gone,
                w.count);
    if (gone)
        join(r, &w);
    free(w.here);
    if (gone != (cancel ? 0 : held) || pool_away_bytes(r->pool) != before + gone)
        blame(r, "what is held goes away");
    return gone;
}

int rig_wake(struct rig *r)
{
    struct walk w = {.r = r};
    bool allowed = r->model->late_allowed;
    if (!pool_away_bytes(r->pool))
        return 0;
    r->model->late_allowed = true;
    uint64_t needs = pool_wake_bytes(r->pool), used = model_used_bytes(r->model);
    uint64_t given_back = rig_stats(r).num_device_free, beside = r->beside_bytes;
    r->wakes = true;
    int code = pool_wake_begin(r->pool);
    r->wakes = false;
    r->model->late_allowed = allowed;
    if (r->log)
        fprintf(r->log, "wake: code %d\n", code);
    /* What a limit lets go of meanwhile goes back besides. */
    uint64_t most = used + (code ? 0 : needs) + r->beside_bytes - beside;
    uint64_t after = model_used_bytes(r->model);
    if (after > most || (after < most && rig_stats(r).num_device_free == given_back))
        blame(r, "a wake takes the device memory that it says it needs, or none");
    if (code)
        return code;
    if (!pool_park_each(r->pool, copy_back, &w))
        blame(r, "a walk goes on until it is told to stop");
    pool_wake_end(r->pool);
    if (pool_away_bytes(r->pool))
        blame(r, "after a wake nothing is away");
    r->saved_count = 0;
    rig_check_bytes(r);
    return 0;
}
