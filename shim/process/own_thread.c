/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See own_thread.h; the numbers below are those of its steps. No lock.
 */
#include "shim/process/own_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

__thread bool own_thread_is_here __attribute__((tls_model("initial-exec")));
static __thread unsigned visit_depth __attribute__((tls_model("initial-exec")));
static atomic_int visits;
static atomic_bool visits_barred;

static void *begin_thread(void *arg)
{
    const struct own_thread *thread = arg;
    own_thread_is_here = true;
    pthread_setname_np(pthread_self(), thread->name); /* step 3 */
    thread->run();
    return NULL;
}

static int create(const struct own_thread *thread, size_t stack_bytes)
{
    pthread_attr_t attr;
    pthread_t unused;
    int failed = pthread_attr_init(&attr);
    if (failed)
        return failed;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED); /* step 1 */
    if (stack_bytes)
        failed = pthread_attr_setstacksize(&attr, stack_bytes);
    if (!failed)
        failed = pthread_create(&unused, &attr, begin_thread, (void *)thread);
    pthread_attr_destroy(&attr);
    return failed;
}

bool own_thread_start(const struct own_thread *thread)
{
    int saved_errno = errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* step 2 */
    int failed = create(thread, thread->stack_bytes);
    if (failed == EINVAL) /* smaller than the thread-local data */
        failed = create(thread, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved_errno;
    return !failed;
}

/* Step 4: the count rises before the look, and the closing thread bars before it looks. */
bool own_visit_begin(void)
{
    if (!own_thread_is_here || visit_depth++)
        return true;
    atomic_fetch_add(&visits, 1);
    if (!atomic_load(&visits_barred))
        return true;
    own_visit_end();
    return false;
}

void own_visit_end(void)
{
    if (own_thread_is_here && --visit_depth == 0)
        atomic_fetch_sub(&visits, 1);
}

void own_visits_bar(void)
{
    atomic_store(&visits_barred, true);
}

bool own_visits_are_over(void)
{
    return !atomic_load(&visits);
}

void own_visits_allow(void)
{
    atomic_store(&visits_barred, false);
}
