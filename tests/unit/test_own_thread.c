/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/process/own_thread.c: a thread of the library's takes nothing of the program's. This program
 * has more thread-local data than the stacks of such threads. */
#include "shim/process/own_thread.h"

#include <semaphore.h>
#include <sys/resource.h>

#include "tests/unit/cases.h"

static _Thread_local char local_data[1 << 20];

static sem_t ran;
static sigset_t mask_there;
static char name_there[16];
static bool detached_there;

static void look_around(void)
{
    pthread_attr_t attr;
    int detach_state;
    memset(local_data, 1, sizeof local_data);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_there);
    pthread_getname_np(pthread_self(), name_there, sizeof name_there);
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getdetachstate(&attr, &detach_state);
    detached_there = detach_state == PTHREAD_CREATE_DETACHED;
    pthread_attr_destroy(&attr);
    sem_post(&ran);
}

static const struct own_thread small = {"fifteen-letters", 128 * 1024, look_around};

static void wait_for_it(void)
{
    while (sem_wait(&ran) && errno == EINTR)
        ;
}

TEST(a_thread_is_made_beside_much_thread_local_data)
{
    assert_true(own_thread_start(&small));
    wait_for_it();
    assert_true(detached_there);
}

TEST(no_signal_comes_to_it_and_the_maker_keeps_its_mask)
{
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_true(own_thread_start(&small));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    wait_for_it();
    for (int n = 1; n <= SIGRTMAX; n++)
        assert_int_equal(sigismember(&before, n), sigismember(&after, n));
    assert_true(sigismember(&mask_there, SIGUSR1) && sigismember(&mask_there, SIGALRM));
}

/* Where the process may open no file, the thread has its name all the same. */
TEST(it_opens_no_file_for_its_name)
{
    struct rlimit before, none;
    memset(name_there, 0, sizeof name_there);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool made = own_thread_start(&small);
    if (made)
        wait_for_it();
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(made);
    assert_string_equal(name_there, small.name);
}

TEST(no_memory_for_the_stack_is_no_thread_and_errno_stays)
{
    static const struct own_thread huge = {"huge", SIZE_MAX / 2, look_around};
    errno = EXDEV;
    assert_false(own_thread_start(&huge));
    assert_int_equal(errno, EXDEV);
}

int main(void)
{
    sem_init(&ran, 0, 0);
    return play_tests(NULL, NULL);
}
