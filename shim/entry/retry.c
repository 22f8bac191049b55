/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See retry.h. No state but the pools', no lock. Nothing here runs unless a call of the driver
 * failed.
 */
#include "shim/entry/retry.h"

#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/driver/closed.h"
#include "shim/driver/error.h"
#include "shim/process/state.h"
#include "shim/share/lend.h"
#include "shim/stats/counters.h"
#include "shim/trace/steps.h"

#include <errno.h>

SHIM_COLD bool retry_note_error(CUresult rc)
{
    if (!state_is_on() || closed_is_now()) /* then the driver was not asked */
        return false;
    if (error_is_loss(rc)) {
        int saved_errno = errno;
        context_look_for_loss();
        errno = saved_errno;
    }
    return rc == CUDA_ERROR_OUT_OF_MEMORY;
}

SHIM_COLD bool retry_release(uint64_t devices, struct retry_steps *steps)
{
    int saved_errno = errno;
    bool some = false;
    steps->told = trace_is_on() && !trace_steps_are_begun();
    if (steps->told)
        trace_steps_begin(steps->bytes);
    TRACE_STEP(REFUSED);
    uint64_t own = devices && atomic_load(&flush_at_oom) ? DEVICES_ALL : devices;
    while (own && steps->step < POOL_RELEASE_STEPS && !some)
        some = context_release(own, (enum pool_release)steps->step++);
    if (some)
        TRACE_STEP(RELEASED); /* perhaps by the driver's own pools alone */
    some = some || lend_ask(devices, steps->bytes, &steps->attempt);
    if (some) {
        counter_add(COUNTER_RETRY, 1);
        TRACE_STEP(AGAIN);
    }
    if (steps->told)
        trace_steps_end(false);
    errno = saved_errno;
    return some;
}

SHIM_COLD void retry_note_again(CUresult rc, const struct retry_steps *steps)
{
    if (steps->told && rc == CUDA_SUCCESS)
        trace_steps_served(steps->bytes);
}
