/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See steps.h.
 */
#include "shim/trace/steps.h"

static const char *const words[] = {
    [STEP_REFUSED] = "the driver has no memory",
    [STEP_ORDERED] = "later GPU work is ordered behind memory that was freed",
    [STEP_RELEASED] = "idle memory goes back",
    [STEP_WAITED] = "the host waits for GPU work",
    [STEP_OWN_CALL] = "the program's own call goes to the driver",
    [STEP_AGAIN] = "the call is made again",
    [STEP_SERVED] = "it is served",
};

static __thread struct {
    bool allocates;
    enum trace_step last;
    uint64_t size_bytes;
} mine __attribute__((tls_model("initial-exec")));

void trace_steps_begin(uint64_t size_bytes)
{
    mine.allocates = true;
    mine.size_bytes = size_bytes;
    mine.last = STEP_NONE;
}

void trace_steps_take(enum trace_step step)
{
    if (!mine.allocates || step == mine.last || (mine.last == STEP_NONE && step != STEP_REFUSED))
        return;
    mine.last = step;
    TRACE(OOM_STEP, .a = mine.size_bytes, .text = words[step]);
}

bool trace_steps_are_begun(void)
{
    return mine.allocates;
}

void trace_steps_served(uint64_t size_bytes)
{
    TRACE(OOM_STEP, .a = size_bytes, .text = words[STEP_SERVED]);
}

void trace_steps_end(bool served)
{
    if (served)
        trace_steps_take(STEP_SERVED);
    mine.allocates = false;
}
