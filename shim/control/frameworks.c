/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See frameworks.h. No lock.
 */
#include "shim/control/frameworks.h"

#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/driver/device.h"
#include "shim/driver/driver_call.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"

#include <stdatomic.h>
#include <stddef.h>

/* Before a package that was busy is asked again. */
#define AGAIN_NS UINT64_C(50000000)

/* Only the framework thread uses it. It is relaxed for captures (driver_call.h): what the package
 * calls breaks none. The package may wait for a lock of the program. So this visit counts as one
 * that waits, and the exit waits 100 ms at most. */
static struct driver_call visit;

static atomic_bool ask_anew;
/* What is to be called once the answer is there. */
static _Atomic(void (*)(bool)) waiting[4];

/* False: it waits already. */
static bool add_follow(void (*follow)(bool gave))
{
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
        if (atomic_load(&waiting[i]) == follow)
            return false;
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++) {
        void (*none)(bool) = NULL;
        if (atomic_compare_exchange_strong(&waiting[i], &none, follow))
            return true;
    }
    return false;
}

static void remove_follow(void (*follow)(bool gave))
{
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++) {
        void (*before)(bool) = follow;
        atomic_compare_exchange_strong(&waiting[i], &before, NULL);
    }
}

static void call_follows(bool gave)
{
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++) {
        void (*follow)(bool gave) = atomic_exchange(&waiting[i], NULL);
        if (follow)
            follow(gave);
    }
}

/* Makes a primary context current that is there, so that the runtime of a package uses it. Else it
 * would make one on the first device. */
static void push_primary(void)
{
    FOR_EACH_CONTEXT(c)
    {
        bool entered = false;
        if (!context_asks(c))
            continue;
        CUcontext ctx = atomic_load(&c->ctx), primary = device_primary(c->device);
        if ((!primary || primary == ctx) && device_primary_is_active(c->device))
            entered = pushed_begin(&visit.pushed, ctx);
        context_asked(c);
        if (entered)
            return;
    }
}

static bool begin(void)
{
    if (capture_open() || !state_is_on() || !driver_call_begin(&visit))
        return false;
    driver_call_wait_begins();
    push_primary();
    return true;
}

static void end(void)
{
    driver_call_wait_ends();
    driver_call_end(&visit);
}

static uint64_t devices(void)
{
    uint64_t mask = 0;
    FOR_EACH_CONTEXT(c)
    {
        if (c->device < 64 && device_primary_is_active(c->device))
            mask |= UINT64_C(1) << c->device;
    }
    return mask;
}

/* Memory that is not free on the devices. All processes' memory is in it. */
static uint64_t used_bytes(void)
{
    uint64_t used = 0, seen = 0;
    FOR_EACH_CONTEXT(c)
    {
        uint64_t free_bytes, total_bytes;
        struct backend *b = &c->backend.base;
        if (c->device >= 64 || seen >> c->device & 1 || !context_asks(c))
            continue;
        if (b->ops->mem_info(b, &free_bytes, &total_bytes) == CUDA_SUCCESS) {
            used += total_bytes - free_bytes;
            seen |= UINT64_C(1) << c->device;
        }
        context_asked(c);
    }
    return used;
}

/* Live memory of the pools. The program may have taken memory past the pools, by its own mapping
 * calls or by stream-ordered allocations. In that case adds the other memory of the devices, as the
 * driver tells it. Other processes' changes in the same milliseconds disturb that figure. */
static uint64_t held_bytes(void)
{
    uint64_t live = 0, reserved = 0;
    FOR_EACH_CONTEXT(c)
    {
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

static const struct framework_host host = {
    .begin = begin, .end = end, .held_bytes = held_bytes, .devices = devices};

static void through(bool anew);

static uint64_t run_follow(uint64_t now_ns)
{
    struct framework_result results[NUM_FRAMEWORKS];
    bool asks = atomic_exchange(&ask_anew, false);
    if (!asks || framework_ask(&host, through, FRAMEWORK_WAIT_NS, results))
        call_follows(!asks || framework_any_is(results, FRAMEWORK_DONE));
    return DUTY_NEVER;
}

static struct duty at_answer = {.run = run_follow, .needs_calm = true, .due_ns = DUTY_NEVER};

static void through(bool anew)
{
    if (anew)
        atomic_store(&ask_anew, true);
    control_due(&at_answer, anew ? control_after(state_clock_ns(), AGAIN_NS) : 0);
}

bool frameworks_ask(uint64_t wait_ns, void (*follow)(bool gave), struct framework_result *results)
{
    bool added = add_follow(follow);
    bool came = framework_ask(&host, through, wait_ns, results);
    if (came && added) { /* a request that waited before is still to be followed */
        remove_follow(follow);
        follow(false);
    }
    return came;
}

void frameworks_ask_later(void (*follow)(bool gave))
{
    add_follow(follow);
    atomic_store(&ask_anew, true);
    control_due(&at_answer, 0);
    control_ensure_thread();
}
