/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See oom.h.
 */
#include "shim/entry/oom.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/tracing.h"
#include "shim/entry/current.h"
#include "shim/option/in_force.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/log.h"
#include "shim/process/text.h"
#include "shim/share/lend.h"
#include "shim/share/neighbour_use.h"
#include "shim/trace/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HOLDERS_SHOWN = 3, NEIGHBOURS = 16, LIMIT_BYTES = 64 };

/* Less that nobody is known to hold is not told: figures are of several moments. */
#define LITTLE_BYTES (UINT64_C(64) << 20)

static _Atomic uint64_t next_ns; /* no file before */

/* What is known outside the process, asked for before the dump. */
struct around {
    int device;                       /* -1: no context is current */
    uint64_t free_bytes, total_bytes; /* 0 also where the driver does not say */
    uint64_t held_bytes;              /* context_held_bytes */
    size_t num_neighbours;
    uint64_t neighbours_bytes; /* of all, also of those that `neighbours` has no room for */
    struct neighbour_held neighbours[NEIGHBOURS];
};

static void look_around(struct around *a)
{
    struct context *c = current_context();
    *a = (struct around){.device = c ? c->device : -1};
    if (!c)
        return;
    struct backend *b = &c->backend.base;
    if (context_pin(c)) {
        if (b->ops->mem_info(b, &a->free_bytes, &a->total_bytes))
            a->free_bytes = a->total_bytes = 0;
        context_unpin(c);
    }
    a->held_bytes = context_held_bytes(c->device);
    a->num_neighbours = lend_list(&c->uuid, a->neighbours, NEIGHBOURS, &a->neighbours_bytes);
}

static struct figure size_of(uint64_t bytes)
{
    struct figure f;
    bool large = bytes >= UINT64_C(1) << 30;
    snprintf(f.text, sizeof f.text, "%.20s %s",
             text_fixed(bytes, large ? 1 << 30 : 1 << 20, 1).text, large ? "GiB" : "MiB");
    return f;
}

/* Both lists are sorted. */
static __attribute__((noinline)) void add_largest(struct text *t, const struct around *a)
{
    struct trace_holder own[HOLDERS_SHOWN];
    size_t num_own = trace_dump_holders(own, HOLDERS_SHOWN), o = 0, n = 0;
    if (!num_own && !a->num_neighbours)
        text_add(t, "no holder is known");
    for (int i = 0; i < HOLDERS_SHOWN && (o < num_own || n < a->num_neighbours); i++) {
        const struct neighbour_held *its = &a->neighbours[n];
        text_add(t, i ? ", " : "");
        if (n == a->num_neighbours || (o < num_own && own[o].bytes >= its->bytes)) {
            text_add(t, "%s %s", own[o].name, size_of(own[o].bytes).text);
            o++;
        } else {
            text_add(t, "process %d%s%s%s %s", its->pid, *its->name ? " (" : "", its->name,
                     *its->name ? ")" : "", size_of(its->bytes).text);
            n++;
        }
    }
}

/* What is neither free nor held by one of whom the process knows. It may be more: what the driver
 * serves is known for all devices together. */
static uint64_t unknown_bytes(const struct around *a)
{
    uint64_t known = a->free_bytes + a->held_bytes + trace_dump_of_driver() + a->neighbours_bytes;
    return a->total_bytes - min_u64(known, a->total_bytes);
}

static __attribute__((noinline)) void add_unknown(struct text *t, const struct around *a)
{
    uint64_t bytes = unknown_bytes(a);
    if (bytes > LITTLE_BYTES)
        text_add(t,
                 "; %s are none of these: CUDA contexts, other memory, processes without the "
                 "library",
                 size_of(bytes).text);
}

/* Why the holders may not be all; "": they are. Static; who dumps is alone. */
static const char *say_gaps(void)
{
    static char out[160];
    struct text t = {out, sizeof out, 0};
    uint64_t since_ns = tracing_rings_since(), num_lost = trace_num_lost();
    out[0] = '\0';
    if (since_ns)
        text_add(&t, "of memory older than %s s no holder is known",
                 text_fixed(clock_now_ns() - since_ns, SEC_NS, 1).text);
    if (num_lost)
        text_add(&t, "%s%" PRIu64 " record%s lost, so holders may be missing", since_ns ? "; " : "",
                 num_lost, num_lost == 1 ? " was" : "s were");
    return out;
}

static void note_around(const struct around *a, uint64_t size_bytes, const void *caller,
                        const char *gaps)
{
    TRACE_CALL(OOM, .a = a->free_bytes, .b = size_bytes, .caller = caller, .text = gaps,
               .aux = trace_aux((uint64_t)a->device));
    uint64_t others_bytes = a->neighbours_bytes;
    for (size_t i = 0; i < a->num_neighbours; i++) {
        others_bytes -= min_u64(others_bytes, a->neighbours[i].bytes);
        TRACE(NEIGHBOUR, .a = (uint64_t)a->neighbours[i].pid, .b = a->neighbours[i].bytes,
              .text = a->neighbours[i].name, .aux = trace_aux((uint64_t)a->device));
    }
    if (others_bytes)
        TRACE(NEIGHBOUR, .b = others_bytes, .text = "others",
              .aux = trace_aux((uint64_t)a->device));
}

/* Of the current context's device. */
static uint64_t max_reserved_bytes(void)
{
    struct pool_config config = {.max_reserved_bytes = UINT64_MAX};
    const struct context *c = current_context();
    if (c)
        in_force_pool_config(c->device, c->backend.base.total_bytes, &config);
    return config.max_reserved_bytes;
}

static __attribute__((noinline)) void write_file(uint64_t size_bytes, const void *caller,
                                                 const char *refused_by)
{
    struct trace_dump_told told;
    char largest[500] = "not known";
    struct text t = {largest, sizeof largest, 0};
    struct around a;
    look_around(&a);
    bool begun = trace_dump_begin(&told);
    if (begun) {
        static struct options options; /* large; who dumps is alone */
        in_force_copy(&options);
        tracing_note_options(&options);
        context_dump_all();
        trace_dump_now();
        const char *gaps = say_gaps();
        note_around(&a, size_bytes, caller, gaps);
        add_largest(&t, &a);
        add_unknown(&t, &a);
        text_add(&t, "%s%s", *gaps ? "; " : "", gaps);
    }
    if (begun && trace_dump_end(&told))
        log_warn("out of memory: %s were asked for%s, %s of the GPU are free; %s says who holds "
                 "what: %s",
                 size_of(size_bytes).text, refused_by, size_of(a.free_bytes).text, told.name,
                 largest);
    else if (told.why[0])
        log_warn("out of memory: %s were asked for%s, %s of the GPU are free; who holds what: %s; "
                 "there is no record in %s: %s",
                 size_of(size_bytes).text, refused_by, size_of(a.free_bytes).text, largest,
                 told.name, told.why);
}

/* One thread in each second. */
static bool is_due(uint64_t now_ns)
{
    uint64_t due_ns = atomic_load(&next_ns);
    return now_ns >= due_ns && atomic_compare_exchange_strong(&next_ns, &due_ns, now_ns + SEC_NS);
}

void oom_note(CUresult rc, uint64_t size_bytes, const void *caller, uint64_t took_ns, bool by_limit)
{
    int saved_errno = errno, cancel = cancel_forbid();
    char limit[LIMIT_BYTES] = "", refused_by[2 * LIMIT_BYTES] = "";
    if (by_limit) {
        uint64_t bytes = max_reserved_bytes();
        snprintf(limit, sizeof limit, "GPUCACHE_MAX_RESERVED=%" PRIu64, bytes);
        snprintf(refused_by, sizeof refused_by,
                 "; the limit GPUCACHE_MAX_RESERVED of %s refused it", size_of(bytes).text);
    }
    TRACE_CALL(ALLOC_FAILED, .a = (uint64_t)rc, .b = size_bytes, .aux = trace_aux(took_ns),
               .caller = caller, .text = by_limit ? limit : NULL);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY && trace_is_ring(atomic_load(&trace_now)) &&
        trace_dump_is_left() && is_due(clock_now_ns()))
        write_file(size_bytes, caller, refused_by);
    cancel_allow(cancel);
    errno = saved_errno;
}
