/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See state.h. The start is lock-free: one thread does it, and the allocations of others meanwhile go
 * to the driver.
 */
#include "shim/process/state.h"

#include "pool/pool.h"
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/process/environ.h"
#include "shim/socket/listener.h"
#include "shim/stats/report.h"
#include "shim/process/twin.h"
#include "shim/driver/visit.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

_Atomic int state_now;

static struct options options;
static uint64_t started_ns;
static pid_t owner; /* of the pools: a child that was made without fork() hears nothing */

const struct options *state_options(void)
{
    return &options;
}

uint64_t state_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t state_started_ns(void)
{
    return started_ns;
}

/* CUDA does not work in a forked child, and another thread may have been inside the pool: from here on
 * every call goes to the driver, whose answer is the native one. */
static void forked_child(void)
{
    atomic_store(&state_now, STATE_OFF);
    atomic_store(&pool_watch, 0);
    context_forget_thread();
    control_leave_signal();
    listener_forget();
}

static void report_at_exit(void)
{
    if (!state_is_on() || getpid() != owner)
        return;
    /* 36 KiB: whoever ends the process may be a thread with a stack of 16 KiB. */
    struct report_pool *pools = malloc(CONTEXTS_MAX * sizeof *pools);
    struct report r = {.pools = pools,
                       .num_pools = pools ? context_report(pools, CONTEXTS_MAX) : 0,
                       .elapsed_ns = state_clock_ns() - started_ns};
    if ((!pools || !report_write(&r, &options.stats)) && options.stats.path[0])
        log_warn("the report cannot be written to %s", options.stats.path);
    free(pools);
}

bool state_start(void)
{
    int expected = STATE_NEW;
    if (!atomic_compare_exchange_strong(&state_now, &expected, STATE_STARTING))
        return expected == STATE_ON;
    int saved_errno = errno;
    environ_hold();
    bool on = !twin_comes_first() && options_load(&options);
    environ_release();
    on = on && pthread_atfork(NULL, NULL, forked_child) == 0;
    if (on) {
        started_ns = state_clock_ns();
        owner = getpid();
        /* Later than the driver's own, so that ours run first. */
        atexit(visit_at_exit);
        at_quick_exit(visit_at_exit);
        if (options.stats.at_exit) {
            atexit(report_at_exit);
            at_quick_exit(report_at_exit);
        }
    }
    atomic_store(&state_now, on ? STATE_ON : STATE_OFF);
    if (on)
        control_start();
    errno = saved_errno;
    return on;
}
