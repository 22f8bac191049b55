/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See rerun.h.
 */
#include "scripts/replay/rerun.h"

#include "scripts/replay/player.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)
/* After so many ticks without an event nothing changes any more. */
#define TICKS_MOST 64
/* Events between two looks at the time. */
#define LOOK 1024
/* The search ends when it knows the least limit to this part of it. */
#define LEAST_PART 512
/* Blocks that the driver serves beside the pool: their size, with this. No address has it. */
#define PASSED (UINT64_C(1) << 63)

struct run {
    struct player on;
    const struct recording *recording;
    uint64_t *addr; /* by block; 0: not there */
    uint64_t ns;    /* of the trace */
    uint64_t next_tick_ns;
    double byte_ns; /* held, times how long */
    bool ends_at_failure;
    struct rerun *out;
};

static uint64_t spent_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* One thread uses the model: no lock. */
static uint64_t held_bytes(const struct run *r)
{
    return r->on.model->used_bytes + r->on.model->other_bytes;
}

static void pass(struct run *r, uint64_t to_ns)
{
    r->byte_ns += (double)held_bytes(r) * (double)(to_ns - r->ns);
    model_advance(r->on.model, to_ns - r->ns);
    r->ns = to_ns;
}

/* Lets the trace's time pass, and the control thread's ticks with it. */
static void pass_until(struct run *r, uint64_t to_ns)
{
    uint64_t tick_ns = pool_tick_ns(r->on.pool);
    if (tick_ns && r->next_tick_ns > r->ns + tick_ns)
        r->next_tick_ns = r->ns + tick_ns;
    for (int i = 0; tick_ns && r->next_tick_ns <= to_ns; i++) {
        if (i >= TICKS_MOST && to_ns - r->next_tick_ns > tick_ns)
            r->next_tick_ns = to_ns - tick_ns;
        pass(r, r->next_tick_ns);
        pool_tick(r->on.pool, NULL);
        tick_ns = pool_tick_ns(r->on.pool);
        r->next_tick_ns = r->ns + tick_ns;
    }
    if (to_ns > r->ns)
        pass(r, to_ns);
}

static void note_failure(struct run *r, const struct recording_event *e)
{
    if (!r->out->num_failed++) {
        r->out->first_failed_ns = e->ns;
        r->out->first_failed_bytes = e->size_bytes;
    }
}

static void allocate(struct run *r, const struct recording_event *e)
{
    uint64_t addr = 0;
    int code = 0;
    enum pool_status status = pool_alloc(r->on.pool, e->size_bytes, &addr, &code);
    if (status == POOL_PASS && driver_time_alloc(&r->on.driver, e->size_bytes))
        addr = PASSED | e->size_bytes;
    else if (status != POOL_OK)
        note_failure(r, e);
    r->addr[e->block] = addr;
}

static void give_back(struct run *r, uint64_t addr)
{
    if (addr & PASSED)
        driver_time_free(&r->on.driver, addr & ~PASSED);
    else if (addr && !player_free(addr))
        r->out->state = RERUN_BROKEN;
}

static void play(struct run *r, const struct recording_event *e)
{
    pass_until(r, e->ns);
    player_submit(&r->on, 0);
    if (e->size_bytes) {
        allocate(r, e);
    } else {
        give_back(r, r->addr[e->block]);
        r->addr[e->block] = 0;
    }
    if (held_bytes(r) > r->out->peak_bytes)
        r->out->peak_bytes = held_bytes(r);
}

static void play_all(struct run *r, uint64_t deadline_ns)
{
    const struct recording *its = r->recording;
    for (size_t i = 0; i < its->count && r->out->state == RERUN_DONE; i++) {
        play(r, &its->events[i]);
        if (i % LOOK == 0 && spent_ns() >= deadline_ns)
            r->out->state = RERUN_LATE;
        if (r->out->num_failed && r->ends_at_failure)
            return;
    }
    if (r->out->state == RERUN_DONE)
        pass_until(r, its->span_ns);
}

static void run_once(struct rerun *out, const struct recording *its, const struct pool_config *c,
                     uint64_t gpu_bytes, uint64_t deadline_ns, bool ends_at_failure)
{
    struct player_gpu gpu = {.bytes = gpu_bytes, .slow = true};
    struct run r = {.recording = its, .out = out, .ends_at_failure = ends_at_failure};
    *out = (struct rerun){.max_reserved_bytes = c->max_reserved_bytes};
    r.addr = calloc(its->num_blocks + 1, sizeof *r.addr);
    player_begin(&r.on, &gpu, c);
    if (r.addr && r.on.pool)
        play_all(&r, deadline_ns);
    else
        out->state = RERUN_LATE;
    model_drain(r.on.model);
    if (out->state == RERUN_DONE && player_error(&r.on))
        out->state = RERUN_BROKEN;
    out->mean_bytes = its->span_ns ? (uint64_t)(r.byte_ns / (double)its->span_ns) : 0;
    out->driver_ns = r.on.driver.spent_ns;
    out->busy_ns = r.on.driver.busy_ns;
    if (r.on.pool)
        player_end(&r.on);
    free(r.addr);
}

/* Half the way between what fails and what serves, again and again. Each figure is of a run. */
static void find_least(struct rerun *best, const struct recording *its, struct pool_config *c,
                       uint64_t gpu_bytes, uint64_t deadline_ns)
{
    run_once(best, its, c, gpu_bytes, deadline_ns, true);
    if (best->state != RERUN_DONE || best->num_failed)
        return;
    uint64_t fails = its->peak_live_bytes / MIB, serves = (best->peak_bytes + MIB - 1) / MIB;
    best->state = RERUN_BOUNDED;
    best->max_reserved_bytes = best->peak_bytes;
    while (serves - fails > 2 + serves / LEAST_PART && serves > fails) {
        struct rerun tried;
        uint64_t middle = fails + (serves - fails) / 2;
        c->max_reserved_bytes = middle * MIB;
        run_once(&tried, its, c, gpu_bytes, deadline_ns, true);
        if (tried.state != RERUN_DONE)
            return;
        if (tried.num_failed) {
            fails = middle;
        } else {
            serves = middle;
            *best = tried;
            best->state = RERUN_BOUNDED;
        }
    }
    best->state = RERUN_DONE;
}

void rerun(struct rerun *out, const struct recording *its, const struct setting *s,
           uint64_t gpu_bytes, uint64_t deadline_ns)
{
    struct pool_config c = s->config;
    if (c.backing == BACKING_AUTO)
        c.backing = BACKING_ARENA;
    if (s->wants_least)
        find_least(out, its, &c, gpu_bytes, deadline_ns);
    else
        run_once(out, its, &c, gpu_bytes, deadline_ns, false);
}
