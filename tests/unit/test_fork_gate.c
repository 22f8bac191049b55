/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/process/fork_gate.c: threads of the library's inside, beside threads that fork. */
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "tests/unit/cases.h"

enum { MOMENT_US = 50000, FORKS = 300, TRIES = 20 };

static atomic_bool is_through;

static void *call(void *function)
{
    (*(void (**)(void))function)();
    atomic_store(&is_through, true);
    return NULL;
}

/* Calls it on another thread, and `then` once that thread waits. False: all of it took so long that
 * the end of the thread's patience may be why it went on. */
static bool expect_wait(void (*function)(void), void (*then)(void))
{
    uint64_t start_ns = clock_now_ns();
    atomic_store(&is_through, false);
    pthread_t thread = started(call, &function);
    usleep(MOMENT_US);
    bool went_on = atomic_load(&is_through);
    then();
    pthread_join(thread, NULL);
    bool told = clock_now_ns() - start_ns < FORK_GATE_PATIENCE_NS / 2;
    assert_false(told && went_on);
    return told;
}

/* A machine that stands still for so long each time is none to test on. */
static void in_some_try(bool (*play)(void))
{
    int tries = 0;
    while (!play())
        assert_true(++tries < TRIES);
}

/* A test that is tried until it tells. */
#define TRIED(name)                                                                                \
    static bool try_##name(void);                                                                  \
    TEST_IS(name, in_some_try(try_##name))                                                         \
    static bool try_##name(void)

TRIED(a_fork_waits_until_the_thread_inside_is_out)
{
    fork_gate_enter();
    bool told = expect_wait(fork_gate_close, fork_gate_leave);
    fork_gate_open();
    return told;
}

TRIED(a_fork_waits_for_every_thread_inside)
{
    fork_gate_enter();
    fork_gate_enter(); /* another thread's */
    fork_gate_leave();
    bool told = expect_wait(fork_gate_close, fork_gate_leave);
    fork_gate_open();
    return told;
}

TRIED(nobody_comes_in_until_all_forks_are_over)
{
    fork_gate_close();
    fork_gate_close();
    fork_gate_open();
    bool told = expect_wait(fork_gate_enter, fork_gate_open);
    fork_gate_leave();
    return told;
}

TEST(each_wait_has_an_end)
{
    uint64_t start_ns = clock_now_ns();
    errno = EDOM;
    fork_gate_enter();
    fork_gate_close();
    uint64_t closed_ns = clock_now_ns();
    assert_true(closed_ns - start_ns >= FORK_GATE_PATIENCE_NS);
    fork_gate_leave();
    fork_gate_enter();
    assert_true(clock_now_ns() - closed_ns >= FORK_GATE_PATIENCE_NS);
    fork_gate_leave();
    fork_gate_open();
    assert_int_equal(errno, EDOM);
}

TRIED(a_gate_that_was_not_closed_stays_open)
{
    uint64_t start_ns = clock_now_ns();
    fork_gate_open();
    fork_gate_enter();
    fork_gate_leave();
    fork_gate_close();
    fork_gate_open();
    return clock_now_ns() - start_ns < FORK_GATE_PATIENCE_NS / 2;
}

TRIED(a_child_has_an_open_gate)
{
    fork_gate_enter();
    fork_gate_close();
    pid_t child = fork();
    if (child == 0) {
        fork_gate_forget();
        uint64_t start_ns = clock_now_ns();
        fork_gate_close();
        fork_gate_open();
        fork_gate_enter();
        _exit(clock_now_ns() - start_ns >= FORK_GATE_PATIENCE_NS);
    }
    int status = child_status(child);
    fork_gate_leave();
    fork_gate_open();
    return status == 0;
}

static atomic_bool over;
static atomic_uint num_inside, num_visits;

static void *go_in_and_out(void *unused)
{
    while (!atomic_load(&over)) {
        fork_gate_enter();
        atomic_fetch_add(&num_inside, 1);
        for (volatile int i = 0; i < 1000; i = i + 1)
            ;
        atomic_fetch_sub(&num_inside, 1);
        fork_gate_leave();
        atomic_fetch_add(&num_visits, 1);
    }
    return NULL;
}

TEST(no_thread_is_inside_while_another_forks)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = started(go_in_and_out, NULL);
    for (unsigned i = 0; i < FORKS; i++) {
        while (atomic_load(&num_visits) < i) /* they go on beside it */
            sched_yield();
        uint64_t start_ns = clock_now_ns();
        fork_gate_close();
        bool seen = false;
        for (int k = 0; k < 100; k++)
            seen = seen || atomic_load(&num_inside) != 0;
        /* Beside a close that lost its patience, one may be inside. */
        assert_false(seen && clock_now_ns() - start_ns < FORK_GATE_PATIENCE_NS);
        fork_gate_open();
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

PLAY_TESTS
