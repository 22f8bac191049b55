/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See turns.h, also for the argument; the numbers below are those of its steps.
 */
#include "shim/control/turns.h"

#include "pool/bits.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/process/state.h"

uint64_t turns_begin(struct turns *t, int device, uint64_t wait_ns)
{
    t->until_ns = control_after(state_clock_ns(), wait_ns);
    t->pause_ns = TURN_LEAST_NS;
    context_settle(device, &t->marks); /* step 6 */
    return min_u64(wait_ns, FIRST_WAIT_NS);
}

bool turns_done(const struct turns *t)
{
    return !capture_open() && context_has_settled(&t->marks); /* step 4 */
}

bool turns_over(const struct turns *t, bool done)
{
    return done || state_clock_ns() >= t->until_ns; /* step 3 */
}

uint64_t turns_next_ns(struct turns *t)
{
    uint64_t next_ns = control_after(state_clock_ns(), t->pause_ns);
    t->pause_ns = min_u64(t->pause_ns * 2, TURN_MOST_NS); /* step 2 */
    return min_u64(next_ns, t->until_ns);
}
