/* SPDX-License-Identifier: BSD-2-Clause */
/* A second thread that leaves the single stream of a pool. The test is linked with --wrap of
 * spin_pause, which is one turn of each of its waits. */
#ifndef TESTS_UNIT_LEAVER_H
#define TESTS_UNIT_LEAVER_H

#include "pool/pool.h"
#include "pool/spin.h"
#include "tests/unit/expect.h"

#include <time.h>

struct leaver {
    struct pool *pool;
    pthread_t thread;
    atomic_bool is_through;
};

static atomic_uint turns_waited; /* of all threads */

void __real_spin_pause(unsigned turn);
void __wrap_spin_pause(unsigned turn);
void __wrap_spin_pause(unsigned turn)
{
    atomic_fetch_add(&turns_waited, 1);
    __real_spin_pause(turn);
}

static void *leave(void *arg)
{
    struct leaver *l = arg;
    pool_leave_single_stream(l->pool);
    atomic_store(&l->is_through, true);
    return NULL;
}

/* Starts it. When this returns, it waits for another thread or is through. Join l->thread. */
static inline void leaver_start(struct leaver *l, struct pool *pool)
{
    struct timespec moment = {.tv_nsec = 1000000};
    unsigned before = atomic_load(&turns_waited);
    l->pool = pool;
    l->thread = started(leave, l);
    while (!atomic_load(&l->is_through) && atomic_load(&turns_waited) == before)
        nanosleep(&moment, NULL);
}

#endif
