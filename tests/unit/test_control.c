/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/control/thread.c: duties run when they are due, and no call is lost. Captures, the exit of
 * the process and the log are stood in for. All cases share the process's one control thread. */
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

#include <semaphore.h>
#include <sys/time.h>

#include "tests/unit/cases.h"
#include "tests/unit/no_log.h"

_Atomic int state_now = STATE_ON;
atomic_uint call_scope_barred;
static atomic_int open_looks; /* a capture is open at so many looks; below 0: at all */

bool capture_open(void)
{
    int left = atomic_load(&open_looks);
    if (left > 0)
        atomic_fetch_sub(&open_looks, 1);
    return left != 0;
}

enum { PATIENCE_MS = 30000 };

/* Waits until the count is reached. */
static bool reaches(atomic_int *count, int wanted, uint64_t wait_ms)
{
    uint64_t end_ns = clock_now_ns() + wait_ms * MS_NS;
    while (atomic_load(count) < wanted && clock_now_ns() < end_ns)
        usleep(1000);
    return atomic_load(count) >= wanted;
}

/* A duty that counts its runs, of which each does this as well. */
#define COUNTED_DUTY(name, calm, does)                                                             \
    static atomic_int name##_runs;                                                                 \
    static uint64_t run_##name(uint64_t now_ns)                                                    \
    {                                                                                              \
        atomic_fetch_add(&name##_runs, 1);                                                         \
        does;                                                                                      \
        return DUTY_NEVER;                                                                         \
    }                                                                                              \
    static struct duty name = {.run = run_##name, .needs_calm = calm, .due_ns = DUTY_NEVER};

COUNTED_DUTY(early, false, (void)0)

TEST(a_call_from_before_the_thread_is_served)
{
    control_due(&early, 0);
    control_ensure_thread();
    assert_false(atomic_load(&control_started));
    control_permit_thread();
    errno = EDOM;
    control_ensure_thread();
    assert_int_equal(errno, EDOM);
    assert_true(atomic_load(&control_started));
    assert_true(reaches(&early_runs, 1, PATIENCE_MS));
    assert_false(reaches(&early_runs, 2, 50));
}

static sem_t slow_began, slow_may_end;

COUNTED_DUTY(slow, false, (sem_post(&slow_began), sem_wait(&slow_may_end)))

TEST(a_call_during_a_run_brings_another_one)
{
    sem_init(&slow_began, 0, 0);
    sem_init(&slow_may_end, 0, 0);
    control_due(&slow, 0);
    sem_wait(&slow_began);
    control_due(&slow, 0);
    control_due(&slow, clock_now_ns() + 60000 * MS_NS); /* the sooner time counts */
    sem_post(&slow_may_end);
    assert_true(reaches(&slow_runs, 2, PATIENCE_MS));
    sem_post(&slow_may_end);
    assert_false(reaches(&slow_runs, 3, 50));
}

static _Atomic uint64_t late_ran_ns;

COUNTED_DUTY(late, false, atomic_store(&late_ran_ns, clock_now_ns()))

TEST(other_wake_ups_put_no_duty_off)
{
    uint64_t due_ns = clock_now_ns() + 200 * MS_NS;
    int before = atomic_load(&early_runs);
    control_due(&late, control_after(clock_now_ns(), UINT64_MAX)); /* the end of the clock */
    control_due(&late, due_ns);
    for (int i = 0; i < PATIENCE_MS / 5 && atomic_load(&late_runs) == 0; i++) {
        control_due(&early, 0);
        usleep(5000);
    }
    assert_int_equal(atomic_load(&late_runs), 1);
    assert_true(atomic_load(&late_ran_ns) >= due_ns);
    assert_true(atomic_load(&early_runs) > before);
}

COUNTED_DUTY(held, true, (void)0)
/* The end of the capture looks for the announcement only now. */
COUNTED_DUTY(beside, true, control_capture_closed())

/* On the control thread, so that one pass finds both due: `held` first, as the list is walked from
 * its newest duty. */
static uint64_t run_both(uint64_t now_ns)
{
    atomic_store(&open_looks, 1);
    control_due(&beside, 0);
    control_due(&held, 0);
    return DUTY_NEVER;
}

static struct duty both = {.run = run_both, .due_ns = DUTY_NEVER};

TEST(a_capture_that_closes_between_two_looks_leaves_no_duty_behind)
{
    control_due(&both, 0);
    assert_true(reaches(&beside_runs, 1, PATIENCE_MS));
    assert_true(reaches(&held_runs, 1, PATIENCE_MS));
    assert_int_equal(atomic_load(&beside_runs), 1);
}

TEST(a_duty_waits_for_the_end_of_the_capture)
{
    int before = atomic_load(&held_runs), early_before = atomic_load(&early_runs);
    atomic_store(&open_looks, -1);
    control_due(&held, 0);
    control_due(&early, 0);
    assert_true(reaches(&early_runs, early_before + 1, PATIENCE_MS));
    assert_false(reaches(&held_runs, before + 1, 50));
    atomic_store(&open_looks, 0);
    control_capture_closed();
    assert_true(reaches(&held_runs, before + 1, PATIENCE_MS));
}

enum { DUTIES = 64 };
static struct duty many[DUTIES];
static atomic_int many_runs, next_of_handler;

static uint64_t run_many(uint64_t now_ns)
{
    atomic_fetch_add(&many_runs, 1);
    return DUTY_NEVER;
}

static void on_alarm(int signal_number)
{
    int saved_errno = errno;
    errno = EDOM;
    control_due(&many[atomic_fetch_add(&next_of_handler, 1) % DUTIES], 0);
    if (errno != EDOM)
        _exit(1);
    errno = saved_errno;
}

static void *call_all(void *unused)
{
    for (int i = 0; i < DUTIES; i++)
        control_due(&many[i], 0);
    return NULL;
}

TEST(new_duties_of_several_threads_and_a_handler_all_run)
{
    struct itimerval often = {{0, 50}, {0, 50}}, never = {0};
    struct sigaction alarms = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    pthread_t threads[4];
    for (int i = 0; i < DUTIES; i++)
        many[i] = (struct duty){.run = run_many, .due_ns = DUTY_NEVER};
    sigaction(SIGALRM, &alarms, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 4; i++)
        threads[i] = started(call_all, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(reaches(&next_of_handler, DUTIES, PATIENCE_MS));
    setitimer(ITIMER_REAL, &never, NULL);
    assert_true(reaches(&many_runs, DUTIES, PATIENCE_MS));
    for (int i = 0; i < DUTIES; i++) {
        assert_true(atomic_load(&many[i].added));
        while (atomic_load(&many[i].due_ns) != DUTY_NEVER)
            usleep(1000);
    }
    /* The thread runs one duty after the other: once this one ran, none of theirs is under way. */
    int last = atomic_load(&early_runs);
    control_due(&early, 0);
    assert_true(reaches(&early_runs, last + 1, PATIENCE_MS));
    int before = atomic_load(&many_runs); /* each is in the list once, and none is lost */
    for (int i = 0; i < DUTIES; i++)
        control_due(&many[i], clock_now_ns() + 50 * MS_NS);
    assert_true(reaches(&many_runs, before + DUTIES, PATIENCE_MS));
    assert_false(reaches(&many_runs, before + DUTIES + 1, 50));
}

TEST(nothing_runs_once_the_process_leaves)
{
    int before = atomic_load(&early_runs);
    atomic_store(&call_scope_barred, CALL_SCOPE_LEAVES);
    control_due(&early, 0);
    assert_false(reaches(&early_runs, before + 1, 100));
}

PLAY_TESTS
