/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See time_budget.h.
 */
#include "pool/time_budget.h"

#include "pool/bits.h"
#include "pool/tuning.h"

bool time_budget_is_left(struct time_budget *e, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns > e->seen_ns ? now_ns - e->seen_ns : 0;
    /* In whole parts, so that nothing is lost however often this is asked. */
    uint64_t earned_ns = min_u64(passed_ns / TIME_BUDGET_PART, (uint64_t)INT32_MAX);
    if (!e->seen_ns || (int64_t)earned_ns > TIME_BUDGET_MAX_NS - e->left_ns) {
        e->left_ns = TIME_BUDGET_MAX_NS;
        e->seen_ns = now_ns;
    } else {
        e->left_ns += (int64_t)earned_ns;
        e->seen_ns += earned_ns * TIME_BUDGET_PART;
    }
    return e->left_ns > 0;
}

bool time_budget_is_full(const struct time_budget *e)
{
    return e->left_ns == TIME_BUDGET_MAX_NS;
}

void time_budget_spend(struct time_budget *e, uint64_t ns, bool growth)
{
    if (growth)
        ns -= min_u64(ns, e->growth_ns);
    int64_t left_ns = e->left_ns - (int64_t)min_u64(ns, TIME_BUDGET_DEBT_MAX_NS);
    e->left_ns = left_ns < -TIME_BUDGET_DEBT_MAX_NS ? -TIME_BUDGET_DEBT_MAX_NS : left_ns;
}

void time_budget_note_growth(struct time_budget *e, uint64_t ns)
{
    e->growth_ns = (3 * e->growth_ns + min_u64(ns, TIME_BUDGET_MAX_NS)) / 4;
}
