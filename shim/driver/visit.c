/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See visit.h.
 */
#include "shim/driver/visit.h"

#include "pool/spin.h"
#include "shim/process/state.h"

/* So long visits under way may take at exit. */
#define PATIENCE_NS UINT64_C(100000000)

atomic_bool visit_no_more;
atomic_int visit_count;

SHIM_COLD bool visit_refused(struct visit *v)
{
    visit_end(v);
    return false;
}

bool visit_run(CUcontext ctx, void (*work)(void *arg), void *arg)
{
    struct visit v;
    if (ctx ? !visit_enter(&v, ctx) : !visit_begin(&v))
        return false;
    work(arg);
    visit_end(&v);
    return true;
}

void visit_at_exit(void)
{
    if (!state_is_on())
        return; /* a forked child: the threads that were in the driver are not here */
    uint64_t start_ns = state_clock_ns();
    atomic_store(&visit_no_more, true);
    for (unsigned turn = 0;
         atomic_load(&visit_count) > 0 && state_clock_ns() - start_ns < PATIENCE_NS; turn++)
        spin_pause(turn);
}
