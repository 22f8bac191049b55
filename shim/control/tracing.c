/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See tracing.h. No state but the duty's, and when a request began rings.
 */
#include "shim/control/tracing.h"

#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/framework/python_api.h"
#include "shim/loader/scope.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/process/log.h"
#include "shim/trace/dump.h"
#include "shim/trace/file.h"
#include "shim/trace/objects.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define OOM_NAME "gpucache-oom-%p.gct"

static _Atomic uint64_t rings_since_ns;

static uint64_t run_trace_tick(uint64_t now_ns)
{
    trace_objects_note();
    if (trace_is_on())
        context_trace_gpus();
    trace_tick();
    return trace_is_on() ? control_after(now_ns, SEC_NS) : DUTY_NEVER;
}

static struct duty at_second = {.run = run_trace_tick, .due_ns = DUTY_NEVER};

void tracing_note_options(const struct options *o)
{
    char value[512], text[TRACE_TEXT_MAX + 1]; /* a longer value is cut off */
    for (size_t row = 0; row < num_option_rows; row++) {
        const char *unset = option_rows[row].value;
        options_show(o, row, value, sizeof value);
        if (strcmp(value, unset) == 0 || (!*unset && strcmp(value, "none") == 0))
            continue;
        snprintf(text, sizeof text, "%s=%s", option_rows[row].env, value);
        TRACE(OPTION, .text = text, .aux = 1);
    }
}

/* In a forked child no stack is walked (shim/trace/stack.h). */
void tracing_stacks_changed(void)
{
    int saved_errno = errno;
    bool may_walk = !scope_is_forked();
    struct python_symbols python;
    const char *why = "";
    trace_set_depth(in_force()->trace_stacks.frames, may_walk);
    if (!in_force()->trace_stacks.python)
        python_frames_end();
    else if (may_walk && python_api_find_symbols(&python) && !python_frames_begin(&python, &why))
        log_warn("GPUCACHE_TRACE_STACKS: no frames of Python: %s", why);
    errno = saved_errno;
}

/* Rings that are on stay on: only the file of the next dump changes. False: a trace was to begin
 * and did not. */
static bool begin_in_force(void)
{
    const char *path = in_force()->trace.path;
    tracing_stacks_changed();
    if (in_force()->trace_on == TRACE_ON_OOM) {
        trace_dump_set_path(*path ? path : OOM_NAME);
        if (!trace_is_ring(atomic_load(&trace_now)))
            trace_begin_ring();
        return true;
    }
    if (!trace_begin(path))
        return !*path;
    tracing_note_options(in_force());
    trace_objects_note();
    context_trace_all();
    control_due(&at_second, control_after(clock_now_ns(), SEC_NS));
    return true;
}

void tracing_start(void)
{
    const char *path = in_force()->trace.path;
    bool is_at_oom = in_force()->trace_on == TRACE_ON_OOM;
    char why[TRACE_WHY_BYTES];
    if (*path || is_at_oom)
        begin_in_force();
    if (*path && is_at_oom && !trace_dump_may_begin(why))
        log_warn("GPUCACHE_TRACE=%.200s: GPUCACHE_TRACE_ON=oom could make no record: %s", path,
                 why);
}

bool tracing_changed(void)
{
    if (!trace_is_ring(atomic_load(&trace_now))) {
        trace_objects_note(); /* for the trace that ends */
        atomic_store(&rings_since_ns, clock_now_ns());
    }
    return begin_in_force();
}

uint64_t tracing_rings_since(void)
{
    return atomic_load(&rings_since_ns);
}

void tracing_end(void)
{
    if (!trace_is_ring(atomic_load(&trace_now)))
        trace_objects_note();
    trace_end();
}
