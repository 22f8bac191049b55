/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See tracing.h. No state but the duty's.
 */
#include "shim/control/tracing.h"

#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/trace/dump.h"
#include "shim/trace/objects.h"
#include "shim/trace/trace.h"

#include <stdio.h>
#include <string.h>

#define OOM_NAME "gpucache-oom-%p.gct"

static uint64_t run_tick(uint64_t now_ns)
{
    trace_objects_note();
    if (trace_is_on())
        context_trace_gpus();
    trace_tick();
    return trace_is_on() ? control_after(now_ns, SEC_NS) : DUTY_NEVER;
}

static struct duty at_second = {.run = run_tick, .due_ns = DUTY_NEVER};

void tracing_note_options(const struct options *o)
{
    char value[900], text[TRACE_TEXT_MAX + 1]; /* a longer value is cut off */
    for (size_t row = 0; row < num_option_rows; row++) {
        const char *unset = option_rows[row].value;
        options_show(o, row, value, sizeof value);
        if (strcmp(value, unset) == 0 || (!*unset && strcmp(value, "none") == 0))
            continue;
        snprintf(text, sizeof text, "%s=%s", option_rows[row].env, value);
        TRACE(OPTION, .text = text, .aux = 1);
    }
}

/* Rings that are on stay on: only the file of the next dump changes. False: a trace was to begin
 * and did not. */
static bool begin_in_force(void)
{
    const char *path = in_force()->trace.path;
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
    if (*in_force()->trace.path || in_force()->trace_on == TRACE_ON_OOM)
        begin_in_force();
}

bool tracing_changed(void)
{
    if (!trace_is_ring(atomic_load(&trace_now)))
        trace_objects_note(); /* for the trace that ends */
    return begin_in_force();
}

void tracing_end(void)
{
    if (!trace_is_ring(atomic_load(&trace_now)))
        trace_objects_note();
    trace_end();
}
