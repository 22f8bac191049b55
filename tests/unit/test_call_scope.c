/* SPDX-License-Identifier: BSD-2-Clause */
/* The exit waits for calls of the driver that are under way (shim/driver/call_scope.h). */
#include "tests/unit/cases.h"
#include <sys/time.h>
#include <time.h>

#include "shim/driver/call_scope.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

/* What call_scope.c needs of the rest of the library. A driver without capture modes is enough. */
struct hooks_real real;
_Atomic int state_now = STATE_ON;

static atomic_bool inside, may_end, at_end;

static void sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000},
              NULL);
}

/* As long as a driver's unmap of much memory beside other processes. */
static void long_call(void *unused)
{
    atomic_store(&inside, true);
    sleep_ms(400);
    atomic_store(&at_end, true);
}

static void waiting_call(void *unused)
{
    call_scope_wait_begin();
    atomic_store(&inside, true);
    while (!atomic_load(&may_end))
        sleep_ms(1);
    call_scope_wait_end();
    atomic_store(&at_end, true);
}

static void *in_scope(void *work)
{
    assert_true(call_scope_run(NULL, *(void (**)(void *))work, NULL));
    return NULL;
}

static pthread_t begin(void (**work)(void *))
{
    atomic_store(&inside, false);
    atomic_store(&at_end, false);
    atomic_store(&may_end, false);
    atomic_store(&call_scope_barred, 0);
    pthread_t thread = started(in_scope, work);
    while (!atomic_load(&inside))
        sleep_ms(1);
    return thread;
}

TEST(the_exit_waits_for_a_long_call)
{
    void (*work)(void *) = long_call;
    pthread_t thread = begin(&work);
    call_scope_at_exit();
    assert_true(atomic_load(&at_end));
    pthread_join(thread, NULL);
}

/* The call does not end before the exit has left it. */
TEST(the_exit_leaves_a_call_that_waits)
{
    void (*work)(void *) = waiting_call;
    pthread_t thread = begin(&work);
    uint64_t start_ns = clock_now_ns();
    call_scope_at_exit();
    assert_in_range(clock_now_ns() - start_ns, 50 * 1000000u, 5 * 1000000000u);
    assert_false(atomic_load(&at_end));
    atomic_store(&may_end, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&call_scope_waiting), 0);
}

static void exit_inside(void *took_ns)
{
    uint64_t start_ns = clock_now_ns();
    call_scope_at_exit();
    *(uint64_t *)took_ns = clock_now_ns() - start_ns;
}

/* A signal handler calls exit(). */
TEST(the_exit_does_not_wait_for_its_own_thread)
{
    uint64_t took_ns = 0;
    atomic_store(&call_scope_barred, 0);
    assert_true(call_scope_run(NULL, exit_inside, &took_ns));
    assert_true(took_ns < 5 * UINT64_C(1000000000));
}

static volatile sig_atomic_t num_signals, num_missed;

static void look(int signal_number)
{
    num_signals++;
    num_missed += atomic_load(&call_scope_count) > 0 && !call_scope_depth;
}

static void nothing(void *unused)
{
}

/* A signal may come between any two instructions. The process has no other call scope here. */
TEST(a_signal_handler_knows_of_its_threads_visit)
{
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    atomic_store(&call_scope_barred, 0);
    signal(SIGALRM, look);
    setitimer(ITIMER_REAL, &often, NULL);
    while (num_signals < 1000)
        assert_true(call_scope_run(NULL, nothing, NULL));
    setitimer(ITIMER_REAL, &never, NULL);
    assert_int_equal(num_missed, 0);
    assert_int_equal(call_scope_depth, 0);
}

TEST(no_call_begins_once_the_process_leaves)
{
    atomic_store(&call_scope_barred, 0);
    call_scope_at_exit();
    assert_false(call_scope_run(NULL, long_call, NULL));
    assert_int_equal(atomic_load(&call_scope_count), 0);
    assert_int_equal(call_scope_depth, 0);
}

TEST(a_forked_child_waits_for_nobody)
{
    atomic_store(&call_scope_barred, 0);
    atomic_store(&call_scope_count, 1); /* a thread of the parent */
    atomic_store(&state_now, STATE_OFF);
    call_scope_at_exit();
    atomic_store(&state_now, STATE_ON);
    atomic_store(&call_scope_count, 0);
    assert_int_equal(atomic_load(&call_scope_barred), 0);
}

PLAY_TESTS
