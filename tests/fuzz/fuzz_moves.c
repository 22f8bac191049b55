/* SPDX-License-Identifier: BSD-2-Clause */
/* A stream of bytes as a program on a pool in arena backing, on devices from 6 MiB to 256 GiB.
 * Driver calls take time, and the time budget is used up and comes back. Memory goes to the host
 * and comes back, with its bytes. While a growth, a park or a wake has dropped the lock, others
 * allocate and free. Checks and entry as in fuzz_pool.c. */
#include "pool/state.h"
#include "tests/fuzz/fuzz_end.h"
#include "tests/unit/rig.h"

#include <stdio.h>
#include <stdlib.h>

static struct input {
    const uint8_t *data;
    size_t size_bytes, at;
} in;
static struct rig *r;
static bool slow;   /* granting access takes long */
static bool beside; /* others come while the lock is dropped */
static bool inside; /* .. one is there */

static uint8_t next(void)
{
    return in.at < in.size_bytes ? in.data[in.at++] : 0;
}

/* Around parts of the device, of a granule, and of a block of the small zone. */
static uint64_t next_size(void)
{
    uint8_t a = next(), b = next();
    uint64_t total = r->model->backend.total_bytes;
    const uint64_t sizes[] = {total >> (b & 7), 1 + 250 * (uint64_t)b, KIB(4) * (1 + (uint64_t)b),
                              MIB(2) * (1 + (b & 15)), (total / 1024) * (1 + (uint64_t)b / 2)};
    uint64_t size = sizes[(a & 7) < 4 ? a & 7 : 4];
    switch (a >> 3 & 7) {
    case 0:
        return size + 1;
    case 1:
        return size - 1 ? size - 1 : 1;
    case 2:
        return size + 512;
    case 3:
        return (size & ~(MIB(2) - 1)) + MIB(2);
    default:
        return size;
    }
}

static uint64_t pick(uint8_t which)
{
    return r->count ? r->blocks[which * 7u % r->count].addr : 0;
}

static void free_some(uint8_t how)
{
    unsigned count = how & 0x80 ? 1 : 1 + (how & 15);
    model_end_forever(r->model);
    while (count-- && r->count)
        rig_free(r, pick((uint8_t)(how + count)));
}

/* What another thread does while this one has dropped the lock. It must not wait for this one. */
static void come_beside(struct rig *its)
{
    if (!beside || inside)
        return;
    const struct model *m = its->model;
    int code = r->code;
    uint64_t used_before = m->used_bytes;
    inside = true;
    uint8_t a = next();
    uint64_t room = m->backend.total_bytes - m->used_bytes - m->other_bytes;
    switch (a & 7) {
    case 0:
    case 1:
        free_some(a);
        break;
    case 2:
        if (!m->plan.at && r->config.max_reserved_bytes == UINT64_MAX &&
            m->used_bytes + m->other_bytes < m->backend.total_bytes / 2)
            rig_alloc(r, room / 64 * (a >> 3 & 7) + 512 * a + 1);
        break;
    case 3:
        rig_trim(r, (uint64_t)(a >> 4) * MIB(4), false);
        break;
    default:
        break;
    }
    inside = false;
    r->code = code;
    r->beside_bytes += m->used_bytes - used_before;
}

static void others(struct model *m, enum model_row row)
{
    if (slow && row == MODEL_ROW_allow)
        model_advance(m, MS(3) << (m->calls[row] & 3));
    if (row == MODEL_ROW_create || row == MODEL_ROW_map || row == MODEL_ROW_allow)
        come_beside(r);
}

static void setup(void)
{
    static const uint64_t capacities[] = {MIB(6),   MIB(20), MIB(64), MIB(300),
                                          MIB(300), GIB(1),  GIB(4),  GIB(256)};
    uint8_t a = next(), b = next();
    r = rig_create(capacities[a & 7]);
    struct backend *backend = &r->model->backend;
    backend->has_order = (a & 0x18) != 0x18;
    backend->single_stream = a & 0x20;
    slow = a & 0x40;
    beside = a & 0x80;
    r->config.reuse = b & 1 ? REUSE_AUTO : (enum pool_reuse)(b >> 1 & 3);
    if ((b & 0x18) == 0x18)
        r->config.max_reserved_bytes = backend->total_bytes / 2 + MIB(1);
    if ((b & 0x60) == 0x60)
        r->config.max_idle_bytes = backend->total_bytes / 16;
    if (b & 0x80)
        r->config.prealloc_bytes = backend->total_bytes / 4 + 100;
    r->model->hook = others;
    r->park_hook = come_beside;
    r->has_bytes = true;
    inside = true; /* not before there is a pool */
    rig_start(r);
    inside = false;
    if (getenv("FUZZ_LOG"))
        r->log = stderr;
}

static void step_fail(void)
{
    static const enum model_row rows[] = {MODEL_ROW_create, MODEL_ROW_map, MODEL_ROW_allow,
                                          MODEL_ROW_create};
    uint8_t a = next();
    model_fail(r->model, rows[a & 3], 1 + (a >> 2 & 15), a & 0x80 ? MODEL_BROKEN : MODEL_NOMEM);
}

static void step_limits(uint8_t how)
{
    uint64_t total = r->model->backend.total_bytes;
    r->config.max_reserved_bytes = how & 0x10 ? UINT64_MAX : total / 4 * (1 + (how >> 5 & 3)) + 1;
    pool_set_config(r->pool, &r->config);
}

static void step_park(uint8_t how)
{
    uint64_t part = r->model->backend.total_bytes / 16;
    for (uint32_t i = 0; i < r->count && !pool_away_bytes(r->pool); i++)
        rig_write(r, &r->blocks[i]);
    if ((how & 0xc0) == 0)
        rig_wake(r);
    else
        rig_park(r, how & 0x20 ? part * (next() & 7) : 0, how & 0x40 ? part * (next() & 15) : 0,
                 (how & 0xc0) == 0x40);
}

/* The time budget is used up, or comes back. */
static void step_budget(uint8_t how)
{
    state_lock(r->pool);
    struct time_budget *e = &r->pool->time_budget;
    time_budget_is_left(e, model_now(r->model));
    time_budget_spend(e, how & 0x10 ? MS(1000) : 0, how & 0x20);
    state_unlock(r->pool);
    if (!(how & 0x10))
        model_advance(r->model, MS(30) * (how >> 4));
}

static void step(void)
{
    uint8_t op = next(), a;
    switch (op & 15) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
        rig_alloc(r, next_size());
        break;
    case 6:
    case 7:
    case 8:
        free_some(op >> 4 | (uint8_t)(next() << 4));
        break;
    case 9:
    case 10:
        a = next();
        rig_launch(r, op >> 4 & 3, MS(1) << (a & 7), a & 0x80 ? 0 : pick(a));
        if ((op & 0xc0) == 0xc0)
            rig_enter_single(r);
        break;
    case 11:
        model_advance(r->model, MS(1) << (op >> 4));
        break;
    case 12:
        rig_trim(r, (uint64_t)(op >> 5) * r->model->backend.total_bytes / 16, op & 0x10);
        break;
    case 13:
        if (op & 0x80)
            step_limits(next());
        else if (op & 0x40)
            pool_tick(r->pool, NULL);
        else if (op & 0x20)
            r->model->other_bytes = r->model->backend.total_bytes / 8 * (op >> 4 & 1);
        else if (r->count)
            rig_expose(r, pick(next()));
        break;
    case 14:
        if (op & 0x10)
            step_park(op);
        else
            step_fail();
        break;
    default:
        step_budget(op);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const char *words = NULL;
    in = (struct input){data, size_bytes, 0};
    setup();
    while (!words && in.at < size_bytes) {
        step();
        /* A look at every granule of a large device takes long. */
        if (r->model->backend.total_bytes < GIB(4) || in.at % 16 == 0)
            words = rig_check(r);
    }
    return fuzz_end(r, words, in.at, size_bytes);
}
