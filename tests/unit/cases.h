/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests that list themselves: TEST(name) { .. } is a test of cmocka, TEST_WITH(name, setup,
 * teardown) one with a fixture. They play in the order in which they stand. PLAY_TESTS is main; a
 * main of its own ends with play_tests. Brings what most tests use of the C library. */
#ifndef TESTS_UNIT_CASES_H
#define TESTS_UNIT_CASES_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TESTS_MAX = 64 }; /* those that are not there are skipped by cmocka */
static struct CMUnitTest all_tests[TESTS_MAX];

static inline void list_test(const char *name, CMUnitTestFunction body,
                             CMFixtureFunction setup_of_test, CMFixtureFunction teardown_of_test)
{
    static unsigned count;
    all_tests[count++] = (struct CMUnitTest){name, body, setup_of_test, teardown_of_test, NULL};
}

#define TEST_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void list_##name(void)                                     \
    {                                                                                              \
        list_test(#name, name, setup, teardown);                                                   \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)
/* TEST_IS(name, call): a test that is one call. */
#define TEST_IS(name, call)                                                                        \
    TEST(name)                                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }

static inline int play_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    return cmocka_run_group_tests(all_tests, set_up, tear_down);
}

/* A thread that runs the function. */
static inline pthread_t started(void *(*function)(void *arg), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, arg), 0);
    return thread;
}

/* Waits for a child of the test. Its status, as waitpid gives it. */
static inline int child_status(pid_t child)
{
    int status = -1;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

#define PLAY_TESTS                                                                                 \
    int main(void)                                                                                 \
    {                                                                                              \
        return play_tests(NULL, NULL);                                                             \
    }

#endif
