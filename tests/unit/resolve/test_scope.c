/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/loader/scope.c waits for no thread that a forked child does not have. A helper thread of
 * the parent holds the loader's list of objects while the process forks. */
#include "shim/loader/scope.h"

#include <semaphore.h>

#include "tests/unit/cases.h"

static sem_t is_held, let_go;

static int hold(struct dl_phdr_info *info, size_t size, void *unused)
{
    sem_post(&is_held);
    while (sem_wait(&let_go) != 0)
        ;
    return 1;
}

static void *hold_the_list(void *unused)
{
    dl_iterate_phdr(hold, NULL);
    return NULL;
}

static bool is_c_library(const struct object *object, void *is_found)
{
    *(bool *)is_found |= object_is_named(object, "libc.so.6");
    return false;
}

/* As the callers of scope.h. True: the C library was found. */
static bool look_as_callers_do(void)
{
    bool is_found = false;
    errno = EDOM;
    if (scope_may_be_walked())
        scope_behind_us(is_c_library, &is_found);
    if (errno != EDOM)
        abort();
    return is_found;
}

static void *look(void *is_found)
{
    *(bool *)is_found = look_as_callers_do();
    return NULL;
}

static bool found_in_another_thread(void)
{
    pthread_t thread;
    bool is_found = false;
    if (pthread_create(&thread, NULL, look, &is_found) || pthread_join(thread, NULL))
        abort();
    return is_found;
}

TEST(the_list_is_walked_in_other_threads_only)
{
    assert_false(look_as_callers_do());
    assert_true(found_in_another_thread());
}

TEST(a_forked_childs_threads_wait_for_no_thread_of_the_parent)
{
    sem_init(&is_held, 0, 0);
    sem_init(&let_go, 0, 0);
    pthread_t holder = started(hold_the_list, NULL);
    sem_wait(&is_held);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(look_as_callers_do() || found_in_another_thread());
    }
    int status = child_status(child);
    sem_post(&let_go);
    pthread_join(holder, NULL);
    assert_int_equal(status, 0);
}

/* argv[0] again, with an argument: see main(). */
TEST(a_child_that_calls_exec_walks_again)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_scope", "after exec", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(child_status(child), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return !found_in_another_thread();
    return play_tests(NULL, NULL);
}
