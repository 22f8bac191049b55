/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads with a real-time policy that share one processor. */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

/* On the processor of the first call. False: the process may not have such threads. */
static inline bool realtime_start(pthread_t *thread, int priority, void *(*body)(void *arg))
{
    pthread_attr_t attr;
    cpu_set_t one;
    static int processor = -1;
    if (processor < 0)
        processor = sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    pthread_attr_init(&attr);
    pthread_attr_setaffinity_np(&attr, sizeof one, &one);
    pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
    pthread_attr_setschedparam(&attr, &(struct sched_param){.sched_priority = priority});
    int code = pthread_create(thread, &attr, body, NULL);
    pthread_attr_destroy(&attr);
    return code == 0;
}
