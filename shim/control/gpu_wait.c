/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See gpu_wait.h, also for the argument; the numbers below are those of its steps.
 */
#include "shim/control/gpu_wait.h"

#include "pool/bits.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/process/clock.h"

uint64_t gpu_wait_begin(struct gpu_wait *t, int device, uint64_t wait_ns)
{
    t->until_ns = control_after(clock_now_ns(), wait_ns);
    t->pause_ns = GPU_WAIT_LEAST_NS;
    t->device = device;
    t->question = 0;
    t->awaits_answer = false;
    context_settle(device, &t->marks); /* step 6 */
    return min_u64(wait_ns, GPU_WAIT_FIRST_NS);
}

void gpu_wait_await_answer(struct gpu_wait *t, uint64_t question, uint64_t wait_ns)
{
    t->question = question;
    t->awaits_answer = question;
    t->answer_until_ns = control_after(clock_now_ns(), wait_ns);
}

/* Step 7. */
static bool has_answer(struct gpu_wait *t)
{
    struct framework_result ignored[NUM_FRAMEWORKS];
    if (!t->awaits_answer)
        return true;
    if (!framework_has_answered(t->question, ignored) && clock_now_ns() < t->answer_until_ns)
        return false;
    t->awaits_answer = false;
    context_settle(t->device, &t->marks);
    return true;
}

bool gpu_wait_done(struct gpu_wait *t)
{
    return !capture_open() && has_answer(t) && context_has_settled(&t->marks); /* step 4 */
}

static uint64_t end_ns(const struct gpu_wait *t)
{
    return t->awaits_answer ? max_u64(t->until_ns, t->answer_until_ns) : t->until_ns;
}

bool gpu_wait_over(const struct gpu_wait *t, bool done)
{
    return done || clock_now_ns() >= end_ns(t); /* step 3 */
}

uint64_t gpu_wait_next_ns(struct gpu_wait *t)
{
    uint64_t next_ns = control_after(clock_now_ns(), t->pause_ns);
    t->pause_ns = min_u64(t->pause_ns * 2, GPU_WAIT_MOST_NS); /* step 2 */
    return min_u64(next_ns, end_ns(t));
}
