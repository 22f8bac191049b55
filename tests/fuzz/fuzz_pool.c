/* SPDX-License-Identifier: BSD-2-Clause */
/* A stream of bytes as a program on the pool: allocations, frees, work on several streams,
 * captures, trims, driver failures. After every step the rig's oracle and pool_check() must be
 * content, and at the end everything must be back with the driver. A libFuzzer target; or, linked
 * with fuzz_main.c, a program that replays files and runs random seeds. FUZZ_LOG in the
 * environment: says each step. */
#include "tests/fuzz/fuzz_end.h"

#include "tests/unit/rig.h"

#include <stdio.h>
#include <stdlib.h>

struct input {
    const uint8_t *data;
    size_t size_bytes, at;
};

static uint8_t next(struct input *in)
{
    return in->at < in->size_bytes ? in->data[in->at++] : 0;
}

/* Sizes where something changes, and around them. */
static uint64_t next_size(struct input *in)
{
    static const uint32_t kib[] = {0,   1,    4,    8,    16,   32,   64,    128,
                                   512, 1024, 2048, 3072, 6144, 8192, 20480, 40960};
    uint8_t a = next(in), b = next(in);
    uint64_t size = (uint64_t)kib[a & 15] << 10;
    switch (a >> 4 & 3) {
    case 0:
        size += 1;
        break;
    case 1:
        size += b;
        break;
    case 2:
        size += (size >> 8) * b;
        break;
    case 3:
        size += UINT64_C(512) * b;
        break;
    }
    return size ? size : 1;
}

static void setup(struct rig *r, struct input *in)
{
    uint8_t a = next(in), b = next(in);
    struct backend *backend = &r->model->backend;
    r->config.backing = a & 1 ? BACKING_SEGMENT : BACKING_ARENA;
    backend->has_order = !(a & 2);
    backend->single_stream = a & 4;
    backend->frees_beside = a & 0x80;
    r->model->query_refused = a & 8;
    r->config.reuse = (enum pool_reuse)(a >> 4 & 3);
    r->config.sync_free = (a & 0xc0) == 0xc0;
    backend->has_arena = (b & 0x7) != 0x7;
    if (b & 0x08)
        r->config.max_reserved_bytes = MIB(48);
    if (b & 0x10)
        r->config.max_idle_bytes = MIB(8);
    if (b & 0x20)
        r->config.min_free_bytes = MIB(32);
    if (b & 0x40)
        r->config.idle_timeout_ns = MS(50);
    if (b & 0x80)
        r->config.prealloc_bytes = MIB(24);
    rig_start(r);
}

static uint64_t pick(struct rig *r, uint8_t which)
{
    return r->count ? r->blocks[which % r->count].addr : 0;
}

static void step_free(struct rig *r, uint8_t which)
{
    if (!r->count)
        return;
    /* A free waits for all work natively, so no program frees behind a kernel that never ends. */
    model_end_forever(r->model);
    rig_free(r, pick(r, which));
}

static const char *step_misuse(struct rig *r, uint8_t how)
{
    uint64_t addr = pick(r, how >> 2);
    uint32_t before = r->count;
    uint64_t gone;
    model_end_forever(r->model);
    model_note_free(r->model); /* with SYNC_FREE even a wrong free waits */
    switch (how & 3) {
    case 0:
        return addr && pool_free(addr + 8) == POOL_OK ? "an interior address frees nothing" : NULL;
    case 1:
        return pool_free(UINT64_C(0x1234567000)) != POOL_FOREIGN ? "a wild address is foreign"
                                                                 : NULL;
    case 2:
        if (!addr)
            return NULL;
        gone = addr;
        step_free(r, how >> 2);
        return before != r->count && pool_free(gone) == POOL_OK ? "nothing is freed twice" : NULL;
    default:
        return pool_free(UINT64_MAX - 511) != POOL_FOREIGN ? "no address is too high" : NULL;
    }
}

static void step_launch(struct rig *r, struct input *in)
{
    static const uint64_t durations[] = {0, 1000, MS(1), MS(20)};
    uint8_t a = next(in), b = next(in);
    rig_launch(r, a & 3, durations[a >> 2 & 3], a & 0x80 ? 0 : pick(r, b));
}

static void step_forever(struct rig *r, uint8_t how)
{
    /* cuMemFree waits for everything: see pool/segment.h. */
    if (!pool_uses_arena(r->pool) || how & 1)
        model_end_forever(r->model);
    else
        rig_launch(r, how >> 1 & 3, MODEL_FOREVER, how & 8 ? pick(r, how >> 4) : 0);
}

static void step_fail(struct rig *r, struct input *in)
{
    uint8_t a = next(in);
    enum model_row row = (enum model_row)(a % MODEL_ROWS);
    int code = a & 0x80 ? MODEL_NOMEM : MODEL_BROKEN;
    switch (row) {
    case MODEL_ROW_fence_record:
        code = a & 0x80 ? MODEL_REFUSED : MODEL_BROKEN;
        /* Before a second stream is used no capture can be open, so nothing is refused then. */
        if (code == MODEL_REFUSED && !r->several_streams)
            return;
        r->lost |= code == MODEL_BROKEN;
        break;
    case MODEL_ROW_fence_create:
    case MODEL_ROW_fence_query:
        /* Loses the context; only now and then, since little happens after it. */
        if (!(a & 0x40))
            return;
        r->lost = true;
        break;
    case MODEL_ROW_fence_order:
    case MODEL_ROW_fence_wait:
        r->lost = true; /* perhaps: on leaving the single stream there is no other way */
        break;
    default:
        break;
    }
    model_fail(r->model, row, 1 + (a >> 4 & 3), code);
}

/* So many sizes that some of them share a row of a magazine. */
#define CROWD 16

/* Blocks of many sizes are freed, and two of each are asked for. The sizes come from what happened
 * before: no more input is read, so that older inputs go on as they did. */
static void step_crowd(struct rig *r)
{
    uint64_t first = r->owners % 251, addrs[3 * CROWD];
    model_end_forever(r->model);
    for (unsigned i = 0; i < 3 * CROWD; i++) {
        unsigned which = i < CROWD ? i : (i - CROWD) / 2;
        if (i == CROWD)
            for (unsigned freed = 0; freed < CROWD; freed++)
                if (addrs[freed])
                    rig_free(r, addrs[freed]);
        addrs[i] = rig_alloc(r, KIB(33) + 512 * (first + 3 * which));
    }
    for (unsigned i = CROWD; i < 3 * CROWD; i++)
        if (addrs[i] && i % 3)
            rig_free(r, addrs[i]);
}

/* What a program seldom does, or another one. */
static const char *step_rarely(struct rig *r, struct input *in, uint8_t op)
{
    uint8_t a = next(in);
    if (op & 0x80)
        return step_misuse(r, a);
    if (op & 0x40 && r->count)
        rig_expose(r, pick(r, a));
    else if (op & 0x20)
        step_forever(r, a);
    else
        r->model->other_bytes = (uint64_t)(a & 7) * MIB(12);
    return NULL;
}

static const char *step(struct rig *r, struct input *in)
{
    uint8_t op = next(in), a;
    if (r->log)
        fprintf(r->log, "at %zu: op %u, now %llu, %u captures\n", in->at, op & 15,
                (unsigned long long)r->model->now_ns, r->model->captures);
    switch (op & 15) {
    case 0:
    case 1:
    case 2:
    case 3:
        rig_alloc(r, next_size(in));
        return NULL;
    case 4:
    case 5:
    case 6:
        step_free(r, op >> 4 | next(in) << 4);
        return NULL;
    case 7:
    case 8:
        step_launch(r, in);
        /* Now and then only one stream is used again; not while one is captured. */
        if ((op & 0x28) == 0x28 && !r->model->captures)
            rig_enter_single(r);
        return NULL;
    case 9:
        a = next(in);
        model_advance(r->model, a & 0x80 ? MS(30) : (uint64_t)a * 100000);
        return NULL;
    case 10:
        /* Only another stream than the legacy one can be captured. */
        if (r->several_streams && !r->model->captures)
            model_capture_begin(r->model);
        else if (r->model->captures)
            model_capture_end(r->model);
        return NULL;
    case 11:
        if (op & 0x10)
            model_end_forever(r->model);
        rig_trim(r, (uint64_t)(op >> 6) * MIB(16), op & 0x10);
        return NULL;
    case 12:
        pool_tick(r->pool, NULL);
        return NULL;
    case 13:
        step_fail(r, in);
        return NULL;
    case 14:
        return step_rarely(r, in, op);
    default:
        if ((op & 0xe0) == 0xa0) {
            step_crowd(r);
            return NULL;
        }
        if (op & 0x10)
            model_end_forever(r->model);
        if (op & 0x10)
            rig_free_all(r);
        else
            model_drain(r->model);
        return NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct input in = {data, size_bytes, 0};
    struct rig *r = rig_create(MIB(128));
    const char *words = NULL;
    if (getenv("FUZZ_LOG"))
        r->log = stderr;
    setup(r, &in);
    while (!words && in.at < size_bytes) {
        words = step(r, &in);
        if (!words)
            words = rig_check(r);
    }
    return fuzz_end(r, words, in.at, size_bytes);
}
