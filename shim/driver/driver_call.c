/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See driver_call.h.
 */
#include "shim/driver/driver_call.h"

#include "pool/spin.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

/* How long the exit waits for visits that end soon, and for those that may never end. */
#define PATIENCE_NS (10 * SEC_NS)
#define PATIENCE_ENDLESS_NS (100 * MS_NS)

atomic_bool driver_call_no_more;
atomic_int driver_call_count;
atomic_int driver_call_program_waits;
atomic_int driver_call_waiting;
__thread int driver_call_depth __attribute__((tls_model("initial-exec")));

SHIM_COLD bool driver_call_refused(struct driver_call *v)
{
    driver_call_end(v);
    return false;
}

bool driver_call_run(CUcontext ctx, void (*work)(void *arg), void *arg)
{
    struct driver_call v;
    if (ctx ? !driver_call_enter(&v, ctx) : !driver_call_begin(&v))
        return false;
    work(arg);
    driver_call_end(&v);
    return true;
}

void driver_call_at_exit(void)
{
    if (!state_is_on())
        return; /* a forked child: the threads that were in the driver are not here */
    uint64_t start_ns = clock_now_ns();
    int left;
    atomic_store(&driver_call_no_more, true);
    for (unsigned turn = 0; (left = atomic_load(&driver_call_count)) > 0; turn++) {
        bool endless = driver_call_depth || left <= atomic_load(&driver_call_waiting);
        uint64_t waited_ns = clock_now_ns() - start_ns;
        if (waited_ns >= (endless ? PATIENCE_ENDLESS_NS : PATIENCE_NS))
            break;
        spin_pause(turn);
    }
}
