/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests share in which a context ends while a thread is inside its pool: what that thread
 * does, a pool with memory of all kinds, and a thread that is stopped inside the driver. */
#ifndef TESTS_UNIT_ENDS_H
#define TESTS_UNIT_ENDS_H

#include "pool/state.h"
#include "tests/unit/expect.h"

#include <sched.h>
#include <semaphore.h>

enum { ENDS_BLOCKS = 20 };
static const uint64_t ends_sizes[] = {600, 5000, KIB(300), MIB(3), MIB(17)};

static inline void trim(struct rig *r)
{
    pool_trim(r->pool, &(struct pool_trim){.wait_ns = MS(5)});
}

static inline void tick(struct rig *r)
{
    pool_tick(r->pool, NULL);
}

static inline void alloc_small(struct rig *r)
{
    rig_alloc(r, 3000);
}

static inline void alloc_large(struct rig *r)
{
    rig_alloc(r, MIB(24));
}

static inline void alloc_all(struct rig *r)
{
    rig_alloc(r, RIG_BYTES - MIB(64));
}

static inline void submit(struct rig *r)
{
    pool_submit(r->pool, 1);
}

/* Live, idle and pending blocks of both zones, slabs of them empty; exposed ones if expose. */
static inline void ends_fill(struct rig *r, bool expose)
{
    uint64_t addrs[ENDS_BLOCKS];
    for (unsigned i = 0; i < ENDS_BLOCKS; i++)
        addrs[i] = rig_alloc(r, ends_sizes[i % 5]);
    for (unsigned i = 0; i < ENDS_BLOCKS; i++) {
        if (i % 2)
            rig_launch(r, 1 + i % 3, MS(1 + i % 4), addrs[i]);
        if (expose && (i == 2 || i == 7))
            rig_expose(r, addrs[i]);
        if (i % 3)
            rig_free(r, addrs[i]);
    }
    rig_empty_magazines(r);
    model_advance(r->model, MS(2));
}

/* An event that was just being recorded ends with its context. */
static inline void ends_destroy(struct rig *r, const char *where, uint64_t at)
{
    const char *words = rig_destroy(r);
    if (words && strcmp(words, "a fence is left") != 0)
        fail_msg("%s %u: %s", where, (unsigned)at, words);
}

/* A thread inside the driver, and one that ends the pool meanwhile. */
struct stopped {
    struct rig *rig;
    enum model_row row; /* where a hook stops it */
    sem_t there, go_on;
    pthread_t thread;
};

static inline void stopped_wait(struct stopped *s)
{
    sem_post(&s->there);
    sem_wait(&s->go_on);
}

/* Returns when the thread is there. */
static inline void stopped_begin(struct stopped *s, void *(*run)(void *arg))
{
    s->rig->model->hook_arg = s;
    sem_init(&s->there, 0, 0);
    sem_init(&s->go_on, 0, 0);
    s->thread = started(run, s);
    sem_wait(&s->there);
}

static inline void *stopped_ender(void *arg)
{
    pool_abandon(arg);
    return NULL;
}

static inline bool stopped_is_abandoned(struct pool *p, uint64_t *reserved_bytes)
{
    state_lock(p);
    bool abandoned = p->abandoned;
    *reserved_bytes = p->stats.reserved_bytes;
    state_unlock(p);
    return abandoned;
}

/* Ends the pool, and lets the thread go on. Returns what the pool had reserved until then. */
static inline uint64_t stopped_end(struct stopped *s)
{
    struct pool *p = s->rig->pool;
    uint64_t reserved_bytes;
    pthread_t ender = started(stopped_ender, p);
    while (!stopped_is_abandoned(p, &reserved_bytes))
        sched_yield();
    for (unsigned turn = 0; turn < 20 && reserved_bytes; turn++) {
        usleep(1000);
        stopped_is_abandoned(p, &reserved_bytes);
    }
    sem_post(&s->go_on);
    pthread_join(s->thread, NULL);
    pthread_join(ender, NULL);
    model_destroy_context(s->rig->model);
    sem_destroy(&s->there);
    sem_destroy(&s->go_on);
    return reserved_bytes;
}

#endif
