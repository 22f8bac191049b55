/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Scenes of trace_writer.c in which rings keep the latest records, and dumps are written of them.
 */
#include "tests/tool/trace_writer.h"

#include "shim/trace/dump.h"
#include "shim/trace/ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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
    char why[200];
    begin_ring(path);
    trace_set_depth(8, true);
    for (uint64_t i = 0; i < 50000; i++)
        (i % 2 ? loads : trains)(FIRST + i * 512, 512);
    if (trace_dump_begin(1, why, sizeof why)) {
        trace_dump_now();
        TRACE_CALL(OOM, .a = MIB, .b = 2 * MIB, .caller = __builtin_return_address(0));
        trace_dump_end(why, sizeof why);
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

static void dump(unsigned number)
{
    char why[200];
    struct trace_holder most[4];
    if (!trace_dump_begin(number, why, sizeof why)) {
        fprintf(stderr, "no dump: %s\n", why);
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
    if (!trace_dump_end(why, sizeof why))
        fprintf(stderr, "no file: %s\n", why);
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
    dump(1);
    churn();
    dump(2);
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
    char why[200];
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
        if (!trace_dump_begin(number, why, sizeof why)) {
            fprintf(stderr, "no dump: %s\n", why);
            continue;
        }
        for (uint64_t i = 0; number == 4 && i < 4; i++)
            trace_dump_live(FIRST + i * 64 * MIB, 700, 1);
        trace_dump_now();
        trace_dump_end(why, sizeof why);
    }
}

static void *too_late(void *arg)
{
    alloc(FIRST, 512, AT(too_late));
    return arg;
}

/* Another thread waits for the rings in vain, so its record is lost. */
void lost_in_a_dump(const char *path)
{
    char why[200];
    pthread_t thread;
    trace_dump_set_path(path);
    trace_begin_ring();
    if (!trace_ring_lock())
        abort();
    pthread_create(&thread, NULL, too_late, NULL);
    pthread_join(thread, NULL);
    trace_ring_unlock();
    if (!trace_dump_begin(2, why, sizeof why))
        abort();
    trace_dump_now();
    trace_dump_end(why, sizeof why);
}
