/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See turns.h, also for the argument; the numbers below are those of its steps.
 */
#include "shim/control/turns.h"

#include "pool/bits.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/process/clock.h"

uint64_t turns_begin(struct turns *t, int device, uint64_t wait_ns)
{
    t->until_ns = control_after(clock_now_ns(), wait_ns);
    t->pause_ns = TURN_LEAST_NS;
    t->device = device;
    t->question = 0;
    t->awaits_answer = false;
    context_settle(device, &t->marks); /* step 6 */
    return min_u64(wait_ns, FIRST_WAIT_NS);
}

void turns_await_answer(struct turns *t, uint64_t question, uint64_t wait_ns)
{
    t->question = question;
    t->awaits_answer = question;
    t->answer_until_ns = control_after(clock_now_ns(), wait_ns);
}

/* Step 7. */
static bool has_answer(struct turns *t)
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

bool turns_done(struct turns *t)
{
    return !capture_open() && has_answer(t) && context_has_settled(&t->marks); /* step 4 */
}

static uint64_t end_ns(const struct turns *t)
{
    return t->awaits_answer ? max_u64(t->until_ns, t->answer_until_ns) : t->until_ns;
}

bool turns_over(const struct turns *t, bool done)
{
    return done || clock_now_ns() >= end_ns(t); /* step 3 */
}

uint64_t turns_next_ns(struct turns *t)
{
    uint64_t next_ns = control_after(clock_now_ns(), t->pause_ns);
    t->pause_ns = min_u64(t->pause_ns * 2, TURN_MOST_NS); /* step 2 */
    return min_u64(next_ns, end_ns(t));
}
