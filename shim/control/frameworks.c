/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See frameworks.h. No lock.
 */
#include "shim/control/frameworks.h"

#include "shim/context/context.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/driver/device.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Only the framework thread uses it. It is relaxed for captures (call_scope.h): what the package
 * calls breaks none. The package may wait for a lock of the program. So this call scope counts as
 * one that waits, and the exit waits 100 ms at most. */
static struct call_scope scope;

/* Makes a primary context current that is there, so that the runtime of a package uses it. Else it
 * would make one on the first device. */
static void push_primary(void)
{
    FOR_EACH_CONTEXT(c) {
        bool entered = false;
        if (!context_pin(c))
            continue;
        CUcontext ctx = atomic_load(&c->ctx), primary = device_primary(c->device);
        if ((!primary || primary == ctx) && device_primary_is_active(c->device))
            entered = pushed_begin(&scope.pushed, ctx);
        context_unpin(c);
        if (entered)
            return;
    }
}

static bool begin_run(void)
{
    if (capture_open() || !state_is_on() || !call_scope_begin(&scope))
        return false;
    call_scope_wait_begin();
    push_primary();
    return true;
}

static void end_run(void)
{
    call_scope_wait_end();
    call_scope_end(&scope);
}

static uint64_t devices(void)
{
    uint64_t mask = 0;
    FOR_EACH_CONTEXT(c) {
        if (c->device < 64 && device_primary_is_active(c->device))
            mask |= UINT64_C(1) << c->device;
    }
    return mask;
}

/* Memory that is not free on the devices. All processes' memory is in it. */
static uint64_t used_bytes(void)
{
    uint64_t used = 0, seen = 0;
    FOR_EACH_CONTEXT(c) {
        uint64_t free_bytes, total_bytes;
        struct backend *b = &c->backend.base;
        if (c->device >= 64 || seen >> c->device & 1 || !context_pin(c))
            continue;
        if (b->ops->mem_info(b, &free_bytes, &total_bytes) == CUDA_SUCCESS) {
            used += total_bytes - free_bytes;
            seen |= UINT64_C(1) << c->device;
        }
        context_unpin(c);
    }
    return used;
}

/* Live memory of the pools. The program may have taken memory past the pools, by its own mapping
 * calls or by stream-ordered allocations. In that case adds the other memory of the devices, as the
 * driver tells it. Other processes' changes in the same milliseconds disturb that figure. */
static uint64_t pools_held_bytes(void)
{
    uint64_t live = 0, reserved = 0;
    FOR_EACH_CONTEXT(c) {
        struct pool_stats stats;
        pool_stats(c->pool, &stats);
        live += stats.allocated_bytes;
        reserved += stats.reserved_bytes;
    }
    if (!counter_get(COUNTER_VMM) && !counter_get(COUNTER_ASYNC))
        return live;
    uint64_t used = used_bytes();
    return live + (used > reserved ? used - reserved : 0);
}

/* The call scope of the framework thread is one of those under way. */
static bool no_call_runs(void)
{
    return atomic_load(&call_scope_count) <= 1 && atomic_load(&call_scope_program_waits) == 0;
}

static const struct framework_host host = {.begin = begin_run,
                                           .end = end_run,
                                           .held_bytes = pools_held_bytes,
                                           .devices = devices,
                                           .is_quiet = no_call_runs};

uint64_t frameworks_ask(void (*answered)(void))
{
    return framework_ask(&host, answered);
}

uint64_t frameworks_look(void)
{
    return framework_look(&host);
}
