/* SPDX-License-Identifier: BSD-2-Clause */
/* Two threads with a real-time policy on one processor. The one of higher priority waits for a few
 * steps of the other, which runs only while the first sleeps. Skips where the policy is not
 * allowed. */
#include "pool/magazine.h"
#include "pool/magazine_pool.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#include <sched.h>
#include <semaphore.h>

enum { LOW = 1, HIGH = 2, PATIENCE_S = 5 };

static struct {
    struct rig *rig;
    struct magazine *locked;
    sem_t go;
} shared;

/* On the processor of the first call. False: the process may not have such threads. */
static bool realtime_start(pthread_t *thread, int priority, void *(*body)(void *arg))
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

static void hang(int number)
{
    static const char words[] = "one thread keeps the other from its processor\n";
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    _exit(1);
}

/* The high one begins when the low one is where it wants it; neither needs the test's own thread.
 */
static void run(void *(*low)(void *arg), void *(*high)(void *arg))
{
    pthread_t threads[2];
    sem_init(&shared.go, 0, 0);
    signal(SIGALRM, hang);
    alarm(PATIENCE_S);
    if (!realtime_start(&threads[0], HIGH, high)) {
        alarm(0);
        skip();
        return;
    }
    EXPECT(realtime_start(&threads[1], LOW, low), "as the first one was");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    alarm(0);
    sem_destroy(&shared.go);
}

static void wake_high(struct model *m, enum model_row row)
{
    if (row != MODEL_ROW_fence_record)
        return;
    m->hook = NULL;
    sem_post(&shared.go); /* it runs at once */
}

static void *record(void *arg)
{
    uint64_t addr;
    int code;
    if (pool_alloc(shared.rig->pool, MIB(4), &addr, &code) == POOL_OK)
        pool_free(addr);
    shared.rig->model->hook = wake_high;
    pool_submit(shared.rig->pool, 0);
    return arg;
}

static void *leave(void *arg)
{
    sem_wait(&shared.go);
    pool_leave_single_stream(shared.rig->pool);
    return arg;
}

POOL_TEST(leaving_waits_for_a_record_of_lower_priority)
{
    shared.rig = expect_single(state);
    run(record, leave);
}

static void *hold(void *arg)
{
    struct magazine *m = shared.locked;
    atomic_exchange(&m->locked, 1);
    sem_post(&shared.go);
    magazine_unlock(m);
    return arg;
}

static void *empty(void *arg)
{
    sem_wait(&shared.go);
    rig_empty_magazines(shared.rig);
    return arg;
}

POOL_TEST(emptying_waits_for_a_thread_in_its_magazine)
{
    shared.rig = expect_single(state);
    uint64_t a = rig_alloc(shared.rig, 512), b = rig_alloc(shared.rig, 512);
    rig_free(shared.rig, a);
    rig_free(shared.rig, b);
    shared.locked = magazine_find_mine(shared.rig->pool);
    EXPECT(shared.locked, "a free made it one");
    run(hold, empty);
}

PLAY_TESTS
