/* SPDX-License-Identifier: BSD-2-Clause */
/* The thread behind hostcall.h. */
#include "tests/sim/hostcall.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/sim/api.h"
#include "tests/sim/clock.h"
#include "tests/sim/work.h"

static bool running;
static unsigned outstanding;
static struct work *first, **last = &first;

static void call(struct work *work)
{
    struct command command = work->command;
    api_unlock();
    command.host.function(command.host.data);
    api_lock();
    outstanding--;
    uint64_t now = clock_now_ns();
    work_complete(work, now > work->earliest_ns ? now : work->earliest_ns);
    api_wake();
}

static void *serve(void *unused)
{
    api_lock();
    for (;;) {
        if (first != NULL) {
            struct work *work = first;
            first = work->next;
            if (first == NULL)
                last = &first;
            call(work);
        } else if (outstanding > 0) {
            api_sleep(500);
            if (first == NULL)
                clock_step();
        } else {
            api_sleep(100000);
        }
    }
    return NULL;
}

void hostcall_expect(void)
{
    outstanding++;
    if (running) {
        api_wake();
        return;
    }
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    running = true;
}

void hostcall_queue(struct work *work)
{
    work->next = NULL;
    *last = work;
    last = &work->next;
    api_wake();
}
