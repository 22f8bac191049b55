/* SPDX-License-Identifier: BSD-2-Clause */
/* A plugin that calls its runtime's cudaMalloc and cudaFree, the latter also while it is unloaded.
 */
#include "tests/preload/small_runtime.h"

#include <pthread.h>
#include <semaphore.h>

static void *held;
static pthread_t apart;
static int (*enter_cuda)(void); /* NULL: there is no thread */
static sem_t ready, unloading;
static int apart_rc = -1;

int small_plugin_hold(void)
{
    int rc = (int)cudaMalloc(&held, 4096);
    return held ? rc : -1; /* no jump there: it is this code that the call is to come back to */
}

static void *hold_and_give_back(void *unused)
{
    void *p = NULL;
    int rc = enter_cuda();
    apart_rc = rc ? rc : (int)cudaMalloc(&p, 4096);
    sem_post(&ready);
    while (sem_wait(&unloading) != 0)
        ;
    cudaFree(p);
    return NULL;
}

int small_plugin_hold_apart(int (*enter)(void))
{
    int rc;
    enter_cuda = enter;
    sem_init(&ready, 0, 0);
    sem_init(&unloading, 0, 0);
    rc = pthread_create(&apart, NULL, hold_and_give_back, NULL);
    if (rc)
        enter_cuda = NULL;
    while (!rc && sem_wait(&ready) != 0)
        ;
    return rc ? rc : apart_rc;
}

int small_plugin_jump(void **p)
{
    return (int)cudaMalloc(p, 4096);
}

__attribute__((destructor)) static void give_back(void)
{
    if (held && cudaFree(held) == cudaSuccess)
        held = NULL;
    if (enter_cuda) {
        sem_post(&unloading);
        pthread_join(apart, NULL);
    }
}

int small_plugin_play(int n)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        void *p = NULL;
        rc = (int)cudaMalloc(&p, (size_t)1 << 20);
        if (rc == 0)
            rc = (int)cudaFree(p);
    }
    return rc;
}
