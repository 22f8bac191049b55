/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See thread.h, also for the argument; the numbers below are those of its steps. No lock.
 *
 * The thread waits on a futex, not on an eventfd. A program may close every descriptor that it did
 * not open (daemons do), and open its own files under the same numbers. A signal handler that then
 * wrote to "its" eventfd would write eight bytes into the program's file. No check in a handler can
 * tell the two apart. A semaphore would not do either: a wait for one on CLOCK_MONOTONIC is newer
 * than the C libraries that this library is to run with.
 */
#include "shim/control/thread.h"

#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/process/clock.h"
#include "shim/process/futex.h"
#include "shim/process/log.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"

#include <errno.h>

/* Enough for calls of the driver. The default of 8 MiB would count as the program's memory. */
#define STACK_BYTES (512 * 1024)

atomic_bool control_started;

static _Atomic(struct duty *) duties;
static _Atomic uint32_t wake; /* 1: a time was lowered since the last pass began */
static atomic_bool deferred;  /* a duty waits for the end of the captures */
static atomic_bool permitted;

static void wake_up(void)
{
    int saved_errno = errno;
    atomic_store(&wake, 1);
    futex_wake(&wake, 1, FUTEX_OF_PROCESS);
    errno = saved_errno;
}

static void add_duty(struct duty *d)
{
    if (atomic_load_explicit(&d->added, memory_order_relaxed) || atomic_exchange(&d->added, true))
        return;
    d->next = atomic_load(&duties);
    while (!atomic_compare_exchange_weak(&duties, &d->next, d))
        ;
}

static void lower_due(struct duty *d, uint64_t due_ns)
{
    uint64_t now = atomic_load(&d->due_ns);
    while (due_ns < now && !atomic_compare_exchange_weak(&d->due_ns, &now, due_ns))
        ;
}

void control_due(struct duty *duty, uint64_t due_ns)
{
    add_duty(duty);
    lower_due(duty, due_ns);
    wake_up();
}

uint64_t control_after(uint64_t now_ns, uint64_t interval_ns)
{
    return interval_ns < DUTY_NEVER - now_ns ? now_ns + interval_ns : DUTY_NEVER;
}

/* *held: a duty was put off in this pass. */
static bool is_calm(bool *held)
{
    atomic_store(&deferred, true); /* step 8 */
    bool open = capture_open();
    *held |= open;
    if (!*held)
        atomic_store(&deferred, false);
    return !open;
}

/* Runs the duties that are due. Returns the time of the next one, without those that wait for calm.
 */
static uint64_t run_due(void)
{
    uint64_t now_ns = clock_now_ns(), next_ns = DUTY_NEVER;
    bool held = false;
    for (struct duty *d = atomic_load(&duties); d; d = d->next) {
        if (!state_is_on() || (atomic_load(&call_scope_barred) & CALL_SCOPE_LEAVES))
            return DUTY_NEVER; /* step 9 */
        uint64_t due_ns = atomic_load(&d->due_ns);
        if (due_ns <= now_ns) {
            if (d->needs_calm && !is_calm(&held))
                continue;
            atomic_store(&d->due_ns, DUTY_NEVER); /* step 6 */
            lower_due(d, d->run(now_ns));
            due_ns = atomic_load(&d->due_ns);
        }
        if (due_ns < next_ns)
            next_ns = due_ns;
    }
    return next_ns;
}

static void run_duties(void)
{
    while (state_is_on()) {
        atomic_exchange(&wake, 0); /* before the pass reads the times: step 5 */
        futex_wait(&wake, 0, run_due(), FUTEX_OF_PROCESS);
    }
}

void control_permit_thread(void)
{
    atomic_store(&permitted, true);
}

void control_make_thread(void)
{
    static const struct own_thread thread = {"gpucache", STACK_BYTES, run_duties};
    if (!atomic_load(&permitted) || atomic_exchange(&control_started, true))
        return;
    if (!own_thread_start(&thread))
        log_once(LOG_LEVEL_WARN, "no control thread: the process may not create another thread, so "
                                 "signals, files, limits and timeouts give no memory back; raise "
                                 "its limit of threads");
}

void control_capture_closed(void)
{
    if (atomic_exchange(&deferred, false))
        wake_up();
}
