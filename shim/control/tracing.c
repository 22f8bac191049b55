/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See tracing.h. No state but the duty's.
 */
#include "shim/control/tracing.h"

#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/trace/objects.h"
#include "shim/trace/trace.h"

static uint64_t run_tick(uint64_t now_ns)
{
    trace_objects_note();
    trace_tick();
    return trace_is_on() ? control_after(now_ns, SEC_NS) : DUTY_NEVER;
}

static struct duty at_second = {.run = run_tick, .due_ns = DUTY_NEVER};

static bool begin(const char *path)
{
    if (!trace_begin(path))
        return false;
    trace_objects_note();
    context_trace_all();
    control_due(&at_second, control_after(clock_now_ns(), SEC_NS));
    return true;
}

void tracing_start(void)
{
    const char *path = in_force()->trace.path;
    if (*path)
        begin(path);
}

bool tracing_changed(void)
{
    const char *path = in_force()->trace.path;
    trace_objects_note(); /* for the trace that ends */
    return begin(path) || !*path;
}

void tracing_end(void)
{
    trace_objects_note();
    trace_end();
}
