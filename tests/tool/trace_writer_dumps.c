/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Scenes of trace_writer.c in which rings keep the latest records, and dumps are written of them.
 */
#include "tests/tool/trace_writer.h"

#include "shim/trace/dump.h"
#include "shim/trace/ring.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void begin_ring(const char *path)
{
    char other[4096];
    snprintf(other, sizeof other, "%s.dump", path);
    trace_dump_set_path(other);
    trace_begin_ring();
}

/* A ring whose chunks follow each other: each knows its paths. */
void paths_in_a_ring(const char *path)
{
    struct trace_dump_told told;
    begin_ring(path);
    trace_set_depth(8, true);
    for (uint64_t i = 0; i < 50000; i++)
        (i % 2 ? loads : trains)(FIRST + i * 512, 512);
    if (trace_dump_begin(&told)) {
        trace_dump_now();
        TRACE_CALL(OOM, .a = MIB, .b = 2 * MIB, .caller = __builtin_return_address(0));
        trace_dump_end(&told);
    }
}

enum { OLD = 100, CHURN = 40000 }; /* a ring has some 65,000 records */

static void churn(void)
{
    for (uint64_t i = 0; i < CHURN; i++) {
        alloc(FAR + i % 5000 * 512, 700, AT(churner));
        give(FAR + i % 5000 * 512, AT(churner));
    }
}

/* Frees every second one of the old blocks, and takes their addresses. */
static void *free_and_take(void *late)
{
    for (uint64_t i = 0; i < OLD; i += 2) {
        give(FIRST + i * MIB, AT(free_and_take));
        alloc(FIRST + i * MIB, 3000 + i, AT(spike));
    }
    give(FIRST + MIB, AT(free_and_take));
    give(FIRST + 3 * MIB, AT(free_and_take));
    TRACE(FREE_FAILED, .a = FIRST + 3 * MIB, .b = 1);
    if (!late) /* its ring loses these records before the other one loses the older ones */
        churn();
    return late;
}

/* A ring before the others in their list. */
static void *flush_once(void *arg)
{
    TRACE(FLUSH, .a = MIB, .b = 3000, .text = "timer");
    return arg;
}

static void dump(void)
{
    struct trace_dump_told told;
    struct trace_holder most[4];
    if (!trace_dump_begin(&told)) {
        fprintf(stderr, "no dump: %s\n", told.why);
        return;
    }
    for (uint64_t i = 0; i < OLD; i++)
        if (i != 1)
            trace_dump_live(FIRST + i * MIB, i % 2 ? 2000 + i : 3000 + i, 1);
    trace_dump_live(FIRST + OLD * MIB, 5000, 1); /* of before the rings */
    trace_dump_live(FIRST + (OLD + 1) * MIB, 6000, 1);
    trace_dump_held(64 * MIB, 1);
    trace_dump_now();
    TRACE(OOM, .a = MIB, .b = 2 * MIB);
    size_t count = trace_dump_holders(most, 4);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "%s %llu\n", most[i].name, (unsigned long long)most[i].bytes);
    if (!trace_dump_end(&told))
        fprintf(stderr, "no file: %s\n", told.why);
}

/* Old blocks, more records than a ring has, changes by another thread before or behind them. */
static void fill_rings(const char *path, bool late)
{
    pthread_t thread;
    struct timespec pause = {.tv_nsec = 700000000};
    begin_ring(path);
    pthread_create(&thread, NULL, flush_once, NULL);
    pthread_join(thread, NULL);
    for (uint64_t i = 0; i < OLD; i++)
        alloc(FIRST + i * MIB, 2000 + i, AT(weights));
    TRACE(ALLOC_DRIVER, .a = FAR - 512, .b = 9000, .caller = AT(leaker));
    TRACE(ALLOC_DRIVER, .a = FAR - 1024, .b = 9000, .caller = AT(leaker));
    TRACE(FREE_ASYNC, .a = FAR - 1024, .caller = AT(leaker));
    for (int round = 0; round < 2; round++) {
        if (round == late) {
            pthread_create(&thread, NULL, free_and_take, late ? &pause : NULL);
            pthread_join(thread, NULL);
            nanosleep(&pause, NULL);
        }
        if (!round)
            churn();
    }
    alloc(FIRST + (OLD + 1) * MIB, 6000, AT(weights));
    dump();
    churn();
    dump();
}

void rings(const char *path)
{
    fill_rings(path, false);
}

void rings_late(const char *path)
{
    fill_rings(path, true);
}

static atomic_bool over;

/* Takes and gives one block after the other, and keeps the last. */
static void *go_on(void *arg)
{
    uint64_t addr = FIRST + (uint64_t)(uintptr_t)arg * 64 * MIB;
    for (uint64_t i = 0; !atomic_load(&over); i++) {
        alloc(addr + i % 1000 * 512, 600, AT(churner));
        give(addr + i % 1000 * 512, AT(churner));
        if (i % 100 == 0)
            TRACE(FLUSH, .a = i, .b = 3000, .text = "timer");
    }
    alloc(addr, 700, AT(leaker));
    return NULL;
}

/* Dumps while other threads write and take chunks anew. */
void dumps(const char *path)
{
    struct trace_dump_told told;
    pthread_t all[4];
    begin_ring(path);
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, go_on, (void *)i);
    struct timespec pause = {.tv_nsec = 20000000};
    for (unsigned number = 1; number <= 4; number++) {
        nanosleep(&pause, NULL);
        atomic_store(&over, number == 4);
        for (int i = 0; number == 4 && i < 4; i++)
            pthread_join(all[i], NULL);
        bool begun = false; /* the lock of the rings may be the others' all the time */
        for (int tries = 0; !begun && tries < 50; tries++)
            begun = trace_dump_begin(&told);
        if (!begun) {
            fprintf(stderr, "no dump: %s\n", told.why);
            continue;
        }
        for (uint64_t i = 0; number == 4 && i < 4; i++)
            trace_dump_live(FIRST + i * 64 * MIB, 700, 1);
        trace_dump_now();
        trace_dump_end(&told);
    }
}

static void *too_late(void *arg)
{
    alloc(FIRST, 512, AT(too_late));
    return arg;
}

/* Another thread waits for the rings in vain, so its record is lost. So does a dump, which takes no
 * number. */
void lost_in_a_dump(const char *path)
{
    struct trace_dump_told told;
    pthread_t thread;
    begin_ring(path);
    if (!trace_ring_lock())
        abort();
    pthread_create(&thread, NULL, too_late, NULL);
    pthread_join(thread, NULL);
    if (trace_dump_begin(&told) || told.why[0])
        abort();
    trace_ring_unlock();
    for (unsigned i = 0; i < TRACE_DUMPS_MOST; i++) {
        char why[TRACE_WHY_BYTES];
        if (!trace_dump_may_begin(why) || !trace_dump_begin(&told))
            abort();
        trace_dump_now();
        trace_dump_end(&told);
        if (i + 1 == TRACE_DUMPS_MOST && (trace_dump_may_begin(why) || !strstr(why, "last")))
            abort();
    }
}

/* Nobody else dumps meanwhile. */
static void dump_of_live(uint64_t live)
{
    struct trace_dump_told told, others;
    if (!trace_dump_begin(&told) || trace_dump_begin(&others))
        abort();
    for (uint64_t i = 0; i < live; i++)
        trace_dump_live(FIRST + i * MIB, 2000, 1);
    trace_dump_now();
    if (!trace_dump_end(&told))
        fprintf(stderr, "no file %s: %s\n", told.name, told.why);
}

/* A block of before the rings is freed, and its address taken again. Both dumps see it. */
void dump_after_dump(const char *path)
{
    begin_ring(path);
    alloc(FIRST, 2000, AT(weights));
    churn();
    give(FIRST, AT(weights));
    for (uint64_t i = 0; i < 2; i++)
        alloc(FIRST + i * MIB, 2000, AT(weights));
    dump_of_live(2);
    dump_of_live(2);
}

static void *free_all_and_churn(void *arg)
{
    for (uint64_t i = 0; i < OLD; i++)
        give(FIRST + i * MIB, AT(free_and_take));
    churn();
    return arg;
}

/* Another thread's ring loses the frees before this thread's loses the allocations. */
void freed_by_another(const char *path)
{
    pthread_t thread;
    begin_ring(path);
    for (uint64_t i = 0; i < OLD; i++)
        alloc(FIRST + i * MIB, 2000, AT(weights));
    pthread_create(&thread, NULL, free_all_and_churn, NULL);
    pthread_join(thread, NULL);
    churn();
    for (uint64_t i = 0; i < OLD; i++)
        alloc(FIRST + i * MIB, 2000, AT(weights));
    dump_of_live(OLD);
}

static void give_in_vain(uint64_t addr)
{
    give(addr, AT(churner));
    TRACE(FREE_FAILED, .a = addr, .b = 1);
}

/* Blocks that were freed already, or that are live and stay so: the first dump has the frees in
 * its records, and the second has not. */
void freed_in_vain(const char *path)
{
    begin_ring(path);
    alloc(FIRST, 2000, AT(weights));
    alloc(FIRST + MIB, 2000, AT(weights));
    give(FIRST, AT(weights));
    churn();
    give_in_vain(FIRST);
    for (uint64_t i = 1; i < 3; i++) /* the last is of before the rings */
        give_in_vain(FIRST + i * MIB);
    alloc(FIRST, 2000, AT(weights));
    dump_of_live(3);
    give(FIRST, AT(weights));
    give_in_vain(FIRST);
    churn();
    alloc(FIRST, 2000, AT(weights));
    dump_of_live(3);
}

/* The block goes from one thread to another between two reads of the dump. */
enum { GIVER, TAKER, THREADS };
static sem_t starts[THREADS], done;
static bool hands_on;

static void *hand_on(void *arg)
{
    uintptr_t who = (uintptr_t)arg;
    for (int turn = 0; turn < 2; turn++) {
        while (sem_wait(&starts[who]))
            ;
        if (turn == (who == GIVER))
            give(FIRST, AT(churner));
        else
            alloc(FIRST, 2000, AT(weights));
        sem_post(&done);
    }
    return NULL;
}

static void run_thread(unsigned who)
{
    sem_post(&starts[who]);
    while (sem_wait(&done))
        ;
}

static bool dies;         /* in the dump */
static const char *taken; /* the dump's file, whose name another one gets; then the disk is full */

static void take_name(void)
{
    char moved[4096];
    struct rlimit most;
    snprintf(moved, sizeof moved, "%s.moved", taken);
    FILE *mine = rename(taken, moved) ? NULL : fopen(taken, "w");
    if (!mine || fputs("mine", mine) < 0 || fclose(mine) || getrlimit(RLIMIT_FSIZE, &most))
        abort();
    most.rlim_cur = TRACE_HEADER_BYTES;
    setrlimit(RLIMIT_FSIZE, &most);
    taken = NULL;
}

bool __real_trace_copy_put(uint64_t offset, const void *data, size_t size_bytes, char *why);
bool __wrap_trace_copy_put(uint64_t offset, const void *data, size_t size_bytes, char *why);
bool __wrap_trace_copy_put(uint64_t offset, const void *data, size_t size_bytes, char *why)
{
    if (dies && offset > TRACE_HEADER_BYTES)
        raise(SIGKILL);
    if (taken && offset >= TRACE_HEADER_BYTES)
        take_name();
    if (hands_on) {
        hands_on = false;
        run_thread(GIVER);
        run_thread(TAKER);
    }
    return __real_trace_copy_put(offset, data, size_bytes, why);
}

/* Of two rings' chunks one is written. */
void killed_in_a_dump(const char *path)
{
    begin_ring(path);
    alloc(FIRST, 2000, AT(weights));
    for (uint64_t i = 0; i < 20000; i++)
        alloc(FIRST + (1 + i) * MIB, 3000, AT(churner));
    dies = true;
    dump_of_live(1);
}

void handed_on_in_a_dump(const char *path)
{
    pthread_t all[THREADS];
    begin_ring(path);
    sem_init(&done, 0, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        sem_init(&starts[i], 0, 0);
        pthread_create(&all[i], NULL, hand_on, (void *)(uintptr_t)i);
    }
    alloc(FIRST, 2000, AT(weights));
    run_thread(TAKER);
    run_thread(GIVER); /* its ring is before the other's in the list */
    hands_on = true;
    dump_of_live(1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
}

/* One has no folder for its file, the next no host memory, and the third has both. */
void failed_dumps(const char *path)
{
    char nowhere[1024];
    struct rlimit most, none;
    struct trace_dump_told told;
    snprintf(nowhere, sizeof nowhere, "%s/no", path);
    begin_ring(nowhere);
    alloc(FIRST, 2000, AT(weights));
    dump_of_live(1);
    begin_ring(path);
    churn(); /* the copy of the owners is not empty */
    getrlimit(RLIMIT_AS, &most);
    none = (struct rlimit){0, most.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    bool begun = trace_dump_begin(&told);
    setrlimit(RLIMIT_AS, &most);
    fprintf(stderr, "%d %s: %s\n", begun, told.name, told.why);
    dump_of_live(1);
}

void dump_whose_name_is_taken(const char *path)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.dump", path);
    begin_ring(path);
    alloc(FIRST, 2000, AT(weights));
    taken = name;
    dump_of_live(1);
}
