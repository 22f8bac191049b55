/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The request `flush`, with its receipt: for each GPU what went back, and what holds the rest. All
 * state belongs to the control thread.
 *
 *   {"ns":11000000,"gpus":[{"uuid":"GPU-...","device":0,"returned_bytes":N,"idle_bytes":N,
 *    "pending_bytes":N,"allocated_bytes":N,"partly_live_bytes":N,"async_idle_bytes":N}],
 *    "frameworks":[{"name":"torch","state":"done","returned_bytes":N,"ns":N}]}
 *
 * frameworks: the packages that are loaded, with what they made idle in the pools or gave back to
 * the driver (framework.h has the states). With frameworks=0 there are none. "frameworks":"late"
 * says that no answer came: without the interpreter's lock the library cannot know which are
 * loaded. Then, or where one of them is busy, the request is done in part. Another flush gives back
 * what they free later. No receipt has those bytes.
 *
 * ns: how long it took. returned_bytes: went back to the driver. The others are what is left.
 * allocated_bytes are live. pending_bytes are freed, and GPU work may still use them: also where
 * the order of one stream lets the pool hand them out before. idle_bytes are the rest of what is
 * reserved. Of the idle bytes, partly_live_bytes are beyond what was to be kept: they lie in pieces
 * of memory (pool/README.md) that hold live blocks too. async_idle_bytes are left in the driver's
 * own pools (shim/driver/async_pool.h); returned_bytes have theirs too.
 */
#include "shim/command/command.h"
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/control/gpu_wait.h"
#include "shim/driver/capture.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

/* Room for what follows the GPUs. */
enum { FRAMEWORKS_BYTES = 128 * NUM_FRAMEWORKS + 64 };

static struct report_pool pools[REPORT_ROWS_MAX];

/* A request that waits for frameworks or for GPU work. */
static struct flush_wait {
    struct empty_cache e;
    struct gpu_wait wait;
    uint64_t start_ns;
    uint64_t returned_bytes[DEVICES_MAX]; /* by this request */
    size_t num_pools;
} waiting[PAGE_SLOTS];

/* What one GPU has, and what went back there. */
struct receipt {
    uint64_t returned_bytes, reserved_bytes, allocated_bytes, pending_bytes, async_idle_bytes;
};

static struct receipt sum_device(int device, const struct flush_wait *w)
{
    struct receipt r = {0};

    if (device < DEVICES_MAX)
        r.returned_bytes = w->returned_bytes[device];
    for (size_t i = 0; i < w->num_pools; i++) {
        const struct pool_stats *s = &pools[i].stats;

        if (pools[i].device != device)
            continue;
        r.reserved_bytes += s->reserved_bytes;
        r.allocated_bytes += s->allocated_bytes;
        r.pending_bytes += s->pending_bytes;
        r.async_idle_bytes += pools[i].async.async_idle_bytes;
    }
    r.pending_bytes += context_behind_work_bytes(device);
    return r;
}

static bool is_first_pool_of_device(size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (pools[j].device == pools[i].device)
            return false;
    return true;
}

/* Adds one GPU to the receipt, if there is room. */
static bool add_gpu(struct text *t, const struct report_pool *p, const struct receipt *r,
                    uint64_t keep_bytes, bool first)
{
    uint64_t used = r->allocated_bytes + r->pending_bytes;
    uint64_t idle = r->reserved_bytes > used ? r->reserved_bytes - used : 0;
    struct text before = *t;

    text_add(t, "%s{", first ? "" : ",");
    text_add_json_string(t, "uuid", p->uuid);
    text_add(t,
             ",\"device\":%d,\"returned_bytes\":%" PRIu64 ",\"idle_bytes\":%" PRIu64
             ",\"pending_bytes\":%" PRIu64 ",\"allocated_bytes\":%" PRIu64
             ",\"partly_live_bytes\":%" PRIu64 ",\"async_idle_bytes\":%" PRIu64 "}",
             p->device, r->returned_bytes, idle, r->pending_bytes, r->allocated_bytes,
             idle > keep_bytes ? idle - keep_bytes : 0, r->async_idle_bytes);
    if (t->used_bytes + FRAMEWORKS_BYTES < t->size_bytes)
        return true;
    *t = before;
    return false;
}

static void add_frameworks(struct text *t, const struct framework_result *results)
{
    bool first = true;

    if (framework_any_is(results, FRAMEWORK_LATE)) { /* all of them */
        text_add(t, ",\"frameworks\":\"%s\"", framework_state_name(FRAMEWORK_LATE));
        return;
    }
    text_add(t, ",\"frameworks\":[");
    for (int i = 0; i < NUM_FRAMEWORKS; i++) {
        if (results[i].state == FRAMEWORK_ABSENT)
            continue;
        text_add(t, "%s{", first ? "" : ",");
        text_add_json_string(t, "name", results[i].name);
        text_add(t, ",");
        text_add_json_string(t, "state", framework_state_name(results[i].state));
        text_add(t, ",\"returned_bytes\":%" PRIu64 ",\"ns\":%" PRIu64 "}",
                 results[i].returned_bytes, results[i].ns);
        first = false;
    }
    text_add(t, "]");
}

/* Adds what all flushes gave back so far, times `sign`. A device's sum never falls, though its rows
 * may change their places (context_report). */
static void add_returned(struct flush_wait *w, uint64_t sign)
{
    w->num_pools = context_report(pools, REPORT_ROWS_MAX);
    for (size_t i = 0; i < w->num_pools; i++)
        if (pools[i].device < DEVICES_MAX)
            w->returned_bytes[pools[i].device] +=
                sign * (pools[i].stats.flushed_bytes + pools[i].async.async_returned_bytes);
}

/* Gives back what is idle, and counts it. */
static void flush_once(struct flush_wait *w, uint64_t wait_ns)
{
    add_returned(w, -UINT64_C(1));
    flush_pools(&w->e, wait_ns, "request");
    add_returned(w, 1);
}

/* False: the reply says what is wrong with the request. */
static bool begin_flush(struct flush_wait *w, const struct command *c, struct command_reply *reply,
                        enum page_reply *code)
{
    uint64_t wait_ms = COMMAND_WAIT_MS / 2, frameworks = 1;
    const char *gpu = command_value(c, "gpu");

    *w = (struct flush_wait){.e = in_force()->empty_cache, .start_ns = clock_now_ns()};
    *code = PAGE_REPLY_BAD;
    if (!command_number(c, "keep", UINT64_MAX, &w->e.keep_bytes, reply) ||
        !command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply) ||
        !command_number(c, "frameworks", 1, &frameworks, reply))
        return false;
    size_t num_pools = context_report(pools, REPORT_ROWS_MAX);
    if (gpu && !command_device(gpu, pools, num_pools, &w->e.device)) {
        *code =
            command_error(reply, PAGE_REPLY_REFUSED, "the process has no pool on gpu %.60s", gpu);
        return false;
    }
    flush_once(w, gpu_wait_begin(&w->wait, w->e.device, wait_ms * MS_NS));
    if (frameworks)
        gpu_wait_await_answer(&w->wait, flush_ask_frameworks(), FRAMEWORK_WAIT_NS);
    return true;
}

/* done: no GPU work holds memory any more. May have a flush follow. */
static enum page_reply make_receipt(const struct flush_wait *w, bool done,
                                    struct command_reply *reply)
{
    struct framework_result frameworks[NUM_FRAMEWORKS];
    uint64_t pending_bytes = 0;
    size_t left_out = 0;
    bool first = true, all = flush_takes_answer(&w->e, w->wait.question, frameworks);

    text_add(&reply->text, "{\"ns\":%" PRIu64 ",\"gpus\":[", clock_now_ns() - w->start_ns);
    for (size_t i = 0; i < w->num_pools; i++) {
        if ((w->e.device >= 0 && pools[i].device != w->e.device) || !is_first_pool_of_device(i))
            continue;
        struct receipt r = sum_device(pools[i].device, w);
        reply->value += r.returned_bytes;
        pending_bytes += r.pending_bytes;
        if (add_gpu(&reply->text, &pools[i], &r, w->e.keep_bytes, first))
            first = false;
        else
            left_out++;
    }
    text_add(&reply->text, "]");
    add_frameworks(&reply->text, frameworks);
    if (left_out)
        text_add(&reply->text, ",\"left_out\":%zu", left_out);
    text_add(&reply->text, "}");
    return !all || (pending_bytes && !done) ? PAGE_REPLY_PARTLY : PAGE_REPLY_DONE;
}

enum page_reply command_flush(const struct command *c, struct command_reply *reply)
{
    struct flush_wait *w = &waiting[c->slot];
    enum page_reply code;

    if (!c->again && !begin_flush(w, c, reply, &code))
        return code;
    bool done = gpu_wait_done(&w->wait);
    if (!gpu_wait_over(&w->wait, done)) {
        reply->again_ns = gpu_wait_next_ns(&w->wait);
        return PAGE_REPLY_PARTLY;
    }
    if (c->again && !capture_open())
        flush_once(w, 0);
    else
        w->num_pools = context_report(pools, REPORT_ROWS_MAX);
    return make_receipt(w, done, reply);
}
