/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The requests `park` and `wake`. All state belongs to the control thread, which waits for nothing
 * here: the park thread works, and the request is looked at again in turns.
 *
 *   {"ns":1000000,"state":"parked","to":"host","room_ns":N,"copy_ns":N,"gpus":[{"uuid":"GPU-...",
 *    "device":0,"parked_bytes":N,"live_bytes":N,"copied_bytes":N,"away_bytes":N,
 *    "stays":[{"what":"exposed","bytes":N}]}]}
 *
 * ns: how long it took. Of a park that had room for the bytes: to is "host" or the folder; room_ns
 * is the part of ns until the room was there, and copy_ns the part in which they were copied,
 * behind the gate. state: "parked", "woken" (also where nothing was away) or "refused"; then "why"
 * is one sentence, and nothing changed. parked_bytes: device memory that went back to the driver in
 * this park. live_bytes: of them, what the host keeps. copied_bytes: of that, what was copied in
 * this park; the rest is a retained copy. away_bytes: all that is away now. state "used" alone:
 * with unused= the program used the GPU, and nothing changed. stays: what the process still has on
 * that GPU: "kept" (keep=), "exposed" (known outside of the process, or beside such memory),
 * "segments" (pools without an arena), "other" (idle, or in work by another thread just then),
 * "stream-ordered" (the driver's own pools).
 *
 * With whole=1: "whole", whether the process is off the GPU; "whole_bytes", what the driver's
 * checkpoint freed; "wakes", at which calls it wakes by itself. If it is not whole, "why" says so
 * beside the state "parked".
 *
 * PAGE_REPLY_DONE; PAGE_REPLY_PARTLY: something stays that was to go; PAGE_REPLY_REFUSED. The
 * reply's value is parked_bytes of all GPUs, and for a wake the bytes that came back.
 */
#include "pool/bits.h"
#include "shim/command/command.h"
#include "shim/context/context.h"
#include "shim/context/submitter.h"
#include "shim/control/flush.h"
#include "shim/control/gpu_wait.h"
#include "shim/control/publish.h"
#include "shim/driver/capture.h"
#include "shim/option/in_force.h"
#include "shim/park/ends.h"
#include "shim/park/park.h"
#include "shim/park/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOK_NS (2 * MS_NS)
#define UNUSED_LOOK_NS (50 * MS_NS)
#define WAIT_MS 1000
/* A request waits so long for the end of another one's park. */
#define TURN_NS (5 * SEC_NS)

/* Room for the end of a reply. */
enum { END_BYTES = 64 };

static struct report_pool pools[REPORT_ROWS_MAX];

/* A request that waits: for idle memory to go back, then for its turn, then for the park thread. */
static struct park_request {
    struct park_wish wish;
    struct gpu_wait wait;
    uint64_t unused_until_ns, uses; /* the process is left alone if the count changes before */
    bool frameworks, flushes, drops;
    uint64_t number;   /* on the park thread; 0: not yet */
    uint64_t until_ns; /* for the turn */
    uint64_t bytes;    /* that were away */
} waiting[PAGE_SLOTS];

static void add_stay(struct text *t, const char *what, uint64_t bytes, bool *first)
{
    if (!bytes)
        return;
    text_add(t, "%s{\"what\":\"%s\",\"bytes\":%" PRIu64 "}", *first ? "" : ",", what, bytes);
    *first = false;
}

static uint64_t async_bytes(int device, size_t num_pools)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < num_pools; i++)
        bytes += pools[i].device == device ? pools[i].async.async_reserved_bytes : 0;
    return bytes;
}

static void add_gpus(struct text *t, const struct park_receipt *r)
{
    size_t num_pools = context_report(pools, REPORT_ROWS_MAX);
    unsigned shown = 0;

    text_add(t, "\"gpus\":[");
    for (unsigned i = 0; i < r->num_gpus; i++) {
        const struct park_gpu *g = &r->gpus[i];
        struct text before = *t;
        bool first = true;

        text_add(t, "%s{", shown ? "," : "");
        text_add_json_string(t, "uuid", g->uuid);
        text_add(t,
                 ",\"device\":%d,\"parked_bytes\":%" PRIu64 ",\"live_bytes\":%" PRIu64
                 ",\"copied_bytes\":%" PRIu64 ",\"away_bytes\":%" PRIu64 ",\"stays\":[",
                 g->device, g->parked_bytes, g->live_bytes, g->copied_bytes, g->away_bytes);
        add_stay(t, "kept", g->kept_bytes, &first);
        add_stay(t, "exposed", g->exposed_bytes, &first);
        add_stay(t, "segments", g->segment_bytes, &first);
        add_stay(t, "other", g->other_bytes, &first);
        add_stay(t, "stream-ordered", async_bytes(g->device, num_pools), &first);
        text_add(t, "]}");
        if (t->used_bytes + END_BYTES < t->size_bytes) {
            shown++;
            continue;
        }
        *t = before;
        break;
    }
    text_add(t, "]");
    if (shown < r->num_gpus)
        text_add(t, ",\"left_out\":%u", r->num_gpus - shown);
}

static enum page_reply write_receipt(const struct park_receipt *r, bool wakes, uint64_t value,
                                     struct command_reply *reply)
{
    static const enum page_reply codes[] = {[PARK_IS_DONE] = PAGE_REPLY_DONE,
                                            [PARK_IS_PARTLY] = PAGE_REPLY_PARTLY,
                                            [PARK_IS_REFUSED] = PAGE_REPLY_REFUSED};
    bool refused = r->outcome == PARK_IS_REFUSED;

    text_add(&reply->text, "{\"ns\":%" PRIu64 ",\"state\":\"%s\",", r->ns,
             refused ? "refused"
             : wakes ? "woken"
                     : "parked");
    if (r->why[0]) {
        text_add_json_string(&reply->text, "why", r->why);
        text_add(&reply->text, ",");
    }
    if (r->is_whole)
        text_add(&reply->text,
                 "\"whole\":true,\"whole_bytes\":%" PRIu64
                 ",\"wakes\":\"only at calls of the library's tables\",",
                 r->whole_bytes);
    if (r->dropped_bytes)
        text_add(&reply->text, "\"dropped_bytes\":%" PRIu64 ",", r->dropped_bytes);
    if (r->to[0]) {
        text_add_json_string(&reply->text, "to", r->to);
        text_add(&reply->text, ",\"room_ns\":%" PRIu64 ",\"copy_ns\":%" PRIu64 ",", r->room_ns,
                 r->copy_ns);
    }
    add_gpus(&reply->text, r);
    text_add(&reply->text, "}");
    reply->value = refused ? 0 : value;
    publish_soon();
    return codes[r->outcome];
}

static void refuse_park(const char *why, struct command_reply *reply)
{
    struct park_receipt r = {.outcome = PARK_IS_REFUSED};
    struct text text = {r.why, sizeof r.why, 0};

    text_add(&text, "%s", why);
    write_receipt(&r, false, 0, reply);
}

/* The request's turn on the park thread, and its end there. True: *out is its receipt. */
static bool is_over(struct park_request *w, uint64_t (*begin)(const struct park_wish *wish),
                    struct park_receipt *out, struct command_reply *reply)
{
    uint64_t now_ns = clock_now_ns();

    if (!w->number)
        w->number = begin(&w->wish);
    if (w->number && park_is_over(w->number, out))
        return true;
    const char *late = w->number ? whole_late_step() : NULL;
    if (late) {
        *out = (struct park_receipt){
            .outcome = begin == park_begin ? PARK_IS_PARTLY : PARK_IS_REFUSED, .is_parked = true};
        snprintf(out->why, sizeof out->why, "the driver does not return from cuCheckpointProcess%s",
                 late);
        return true;
    }
    bool leaves = ends_process_leaves(); /* then no other begins */
    if (!w->number && (leaves || now_ns >= w->until_ns)) {
        *out = (struct park_receipt){.outcome = PARK_IS_REFUSED};
        snprintf(out->why, sizeof out->why, "%s",
                 leaves ? ends_why() : "another park or wake is under way");
        return true;
    }
    reply->again_ns = now_ns + LOOK_NS;
    return false;
}

static void flush_idle(const struct park_request *w)
{
    const struct empty_cache e = {.device = w->wish.device};

    flush_pools(&e, 0, "park");
}

static void flush_first(struct park_request *w)
{
    flush_idle(w);
    gpu_wait_begin(&w->wait, w->wish.device, w->wish.wait_ns);
    if (w->frameworks)
        gpu_wait_await_answer(&w->wait, flush_ask_frameworks(), FRAMEWORK_WAIT_NS);
}

/* False: the reply says what is wrong with the request. */
static bool begin_park(struct park_request *w, const struct command *c, struct command_reply *reply,
                       enum page_reply *code)
{
    uint64_t wait_ms = WAIT_MS, unused_ms = 0, frameworks = 1, whole = 0;
    const char *gpu = command_value(c, "gpu");

    *w = (struct park_request){.wish = {.reason = PARK_ASKED, .device = -1}, .flushes = true};
    *code = PAGE_REPLY_BAD;
    if (!command_number(c, "keep", UINT64_MAX, &w->wish.keep_bytes, reply) ||
        !command_number(c, "wait", COMMAND_WAIT_MS, &wait_ms, reply) ||
        !command_number(c, "unused", COMMAND_WAIT_MS, &unused_ms, reply) ||
        !command_number(c, "frameworks", 1, &frameworks, reply) ||
        !command_number(c, "whole", 1, &whole, reply))
        return false;
    const char *to = command_value(c, "to");
    if (to && strlen(to) >= sizeof w->wish.to) {
        command_error(reply, PAGE_REPLY_BAD, "to=%.40s... is too long", to);
        return false;
    }
    if (to)
        memcpy(w->wish.to, to, strlen(to) + 1);
    if (whole && (gpu || w->wish.keep_bytes)) {
        *code = command_error(reply, PAGE_REPLY_BAD, "whole= has neither gpu= nor keep= beside it");
        return false;
    }
    w->wish.whole = whole;
    w->wish.wait_ns = wait_ms * MS_NS;
    *code = PAGE_REPLY_REFUSED;
    const char *why = whole_lock_refusal();
    if (why) {
        refuse_park(why, reply);
        return false;
    }
    if (gpu &&
        !command_device(gpu, pools, context_report(pools, REPORT_ROWS_MAX), &w->wish.device)) {
        command_error(reply, PAGE_REPLY_REFUSED, "the process has no pool on gpu %.60s", gpu);
        return false;
    }
    if (in_force()->park.off || capture_open()) {
        refuse_park(capture_open() ? "a stream capture is open" : "GPUCACHE_PARK=off", reply);
        return false;
    }
    w->frameworks = frameworks;
    if (unused_ms)
        w->unused_until_ns = clock_now_ns() + unused_ms * MS_NS;
    else
        flush_first(w);
    w->uses = submitters_uses();
    return true;
}

/* False: the process is looked at longer, or it used the GPU; then *code says so. */
static bool is_unused(struct park_request *w, struct command_reply *reply, enum page_reply *code)
{
    uint64_t now_ns = clock_now_ns();

    *code = PAGE_REPLY_PARTLY;
    if (submitters_uses() != w->uses) {
        text_add(&reply->text, "{\"ns\":0,\"state\":\"used\"}");
        *code = PAGE_REPLY_DONE;
        return false;
    }
    if (now_ns < w->unused_until_ns) {
        reply->again_ns = now_ns + UNUSED_LOOK_NS;
        return false;
    }
    w->unused_until_ns = 0;
    const char *why = whole_lock_refusal();
    if (why) {
        refuse_park(why, reply);
        *code = PAGE_REPLY_REFUSED;
        return false;
    }
    flush_first(w);
    return true;
}

enum page_reply command_park(const struct command *c, struct command_reply *reply)
{
    struct park_request *w = &waiting[c->slot];
    struct park_receipt r;
    enum page_reply code;
    uint64_t parked_bytes = 0;

    if (!c->again && !begin_park(w, c, reply, &code))
        return code;
    if (w->unused_until_ns && !is_unused(w, reply, &code))
        return code;
    if (w->flushes) {
        if (!gpu_wait_over(&w->wait, gpu_wait_done(&w->wait))) {
            reply->again_ns = gpu_wait_next_ns(&w->wait);
            return PAGE_REPLY_PARTLY;
        }
        w->flushes = false;
        w->until_ns = clock_now_ns() + TURN_NS;
        if (!capture_open())
            flush_idle(w);
    }
    if (!is_over(w, park_begin, &r, reply))
        return PAGE_REPLY_PARTLY;
    for (unsigned i = 0; i < r.num_gpus; i++)
        parked_bytes += r.gpus[i].parked_bytes;
    return write_receipt(&r, false, parked_bytes, reply);
}

static uint64_t begin_wake(const struct park_wish *unused)
{
    (void)unused;
    return park_begin_wake(false);
}

static uint64_t begin_wake_and_drop(const struct park_wish *unused)
{
    (void)unused;
    return park_begin_wake(true);
}

enum page_reply command_wake(const struct command *c, struct command_reply *reply)
{
    struct park_request *w = &waiting[c->slot];
    struct park_receipt r = {.outcome = PARK_IS_DONE};

    if (!c->again) {
        uint64_t drops = 0;
        *w = (struct park_request){.until_ns = clock_now_ns() + TURN_NS};
        if (!command_number(c, "drop", 1, &drops, reply))
            return PAGE_REPLY_BAD;
        w->drops = drops;
        const char *locked = whole_lock_refusal();
        if (locked) {
            r.outcome = PARK_IS_REFUSED;
            snprintf(r.why, sizeof r.why, "%s", locked);
        }
        /* It may be parked in a moment. */
        if (locked || (!park_is_parked() && !park_is_busy() && !(drops && park_retained_bytes())))
            return write_receipt(&r, true, 0, reply);
    }
    if (!w->number)
        w->bytes = context_away_bytes(-1);
    return is_over(w, w->drops ? begin_wake_and_drop : begin_wake, &r, reply)
               ? write_receipt(&r, true, w->bytes, reply)
               : PAGE_REPLY_PARTLY;
}
