/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Writes traces (shim/trace) for the tests of their reader: trace_writer SCENE FILE. The scene
 * large:N has N records.
 */
#include "shim/trace/dump.h"
#include "shim/trace/fast.h"
#include "shim/trace/objects.h"
#include "shim/trace/ring.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FIRST UINT64_C(0x7f0000000000)
#define FAR UINT64_C(0x302000000)
#define MIB (UINT64_C(1) << 20)
/* Some address in the function. */
#define AT(function) ((const void *)((uintptr_t)(function) + 1))

static void alloc(uint64_t addr, uint64_t size_bytes, const void *caller)
{
    if (trace_is_on())
        trace_note_fast(TRACE_ALLOC_FAST, addr, size_bytes, caller);
}

static void give(uint64_t addr, const void *caller)
{
    if (trace_is_on())
        trace_note_fast(TRACE_FREE, addr, 0, caller);
}

/* One of each kind, then sizes and addresses of all sorts. */
static void all_kinds(void)
{
    TRACE(CONTEXT, .a = 0, .b = 80 << 20, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 64 * MIB, .aux = 1234, .context = 1);
    TRACE(MAP, .a = FIRST + 64 * MIB, .b = 2 * MIB);
    TRACE(FLUSH, .a = 5 * MIB, .b = 777, .text = "signal");
    TRACE(ALLOC_FAILED, .a = 2, .b = 1 << 30, .caller = AT(all_kinds));
    alloc(FIRST, 512, AT(all_kinds));
    alloc(FIRST + 512, 1, AT(alloc));
    alloc(FIRST + 1024, (1 << 24) - 1, AT(all_kinds));
    alloc(FIRST + 64 * MIB, 1 << 24, AT(all_kinds));
    alloc(FIRST + 96 * MIB, UINT64_C(1) << 40, AT(all_kinds));
    alloc(FAR, 300, AT(all_kinds));
    alloc(FIRST - 512, 300, AT(all_kinds));
    alloc(FIRST + 300, 300, NULL);
    give(FIRST, AT(give));
}

/* Code that asks for memory, for symbols. */
__attribute__((noinline)) void weights(void);
__attribute__((noinline)) void churner(void);
__attribute__((noinline)) void leaker(void);
__attribute__((noinline)) void spike(void);
void weights(void)
{
}
void churner(void)
{
    __asm__ volatile("");
}
void leaker(void)
{
    __asm__ volatile("nop");
}
void spike(void)
{
    __asm__ volatile("nop; nop");
}

/* A program that holds, frees and asks again, leaks, and has one high moment. */
static void a_program(void)
{
    struct timespec step = {.tv_nsec = 1000000};
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 1024 * MIB, .aux = 5000, .context = 1);
    alloc(FIRST, 100 * MIB, AT(weights));
    for (uint64_t i = 0; i < 400; i++) {
        alloc(FIRST + 200 * MIB, MIB, AT(churner));
        if (i % 10 == 0)
            alloc(FIRST + (300 + i) * MIB, MIB, AT(leaker));
        if (i == 200) {
            alloc(FIRST + 800 * MIB, 200 * MIB, AT(spike));
            nanosleep(&step, NULL);
            give(FIRST + 800 * MIB, AT(spike));
            TRACE(FLUSH, .a = 24 * MIB, .b = 3000, .text = "signal");
        }
        nanosleep(&step, NULL);
        give(FIRST + 200 * MIB, AT(churner));
        give(FAR, AT(churner)); /* of before the trace */
    }
    TRACE(ALLOC_FAILED, .a = 2, .b = 4096 * MIB, .caller = AT(spike));
    TRACE(PASSED, .b = 7 * MIB, .aux = 0, .caller = AT(spike));
}

/* Words that would be programs in a page. */
static void hostile(void)
{
    const char *script =
        "</script><script>document.title = 'foreign'</script><img src=x onerror=1>";
    prctl(PR_SET_NAME, "<b>thread</b>", 0, 0, 0);
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 <img src=x onerror=1>");
    TRACE(OPTION, .text = script);
    alloc(FIRST, 100 * MIB, AT(weights));
    TRACE(OOM_STEP, .a = MIB, .text = script);
    TRACE(FLUSH, .a = MIB, .b = 3000, .text = "${data} $data \\u003c");
}

static void *in_a_thread(void *arg)
{
    uintptr_t number = (uintptr_t)arg;
    char name[16];
    snprintf(name, sizeof name, "worker %u", (unsigned)number);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    for (uint64_t i = 0; i < 12000; i++) {
        alloc(FIRST + number * 64 * MIB + i * 512, 1 + number, (void *)(FAR + i % 700 * 16));
        give(FIRST + number * 64 * MIB + i * 512, AT(in_a_thread));
    }
    return NULL;
}

static void threads(void)
{
    for (int round = 0; round < 2; round++) {
        pthread_t all[4];
        for (uintptr_t i = 0; i < 4; i++)
            pthread_create(&all[i], NULL, in_a_thread, (void *)i);
        for (int i = 0; i < 4; i++)
            pthread_join(all[i], NULL);
    }
}

/* So many records, of blocks of all sizes that live for a while, of code all over. */
static void large(uint64_t num_records)
{
    enum { LIVE = 4096 };
    static uint64_t sizes[LIVE];
    uint64_t seed = 1;
    TRACE(CONTEXT, .a = 0, .b = 80ull << 30, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 64ull << 30, .aux = 5000, .context = 1);
    for (uint64_t i = 0; i < num_records / 2; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t place = seed >> 33 & (LIVE - 1), addr = FIRST + place * 16 * MIB;
        if (sizes[place])
            give(addr, AT(give));
        sizes[place] = 512 + (seed >> 45) % (i % 7 ? 65536 : 4 * MIB);
        alloc(addr, sizes[place], (void *)(FAR + (seed >> 20) % 600 * 16));
    }
}

/* The recorder's locks: so often another thread has them. */
static __thread int times_held;

int pthread_mutex_trylock(pthread_mutex_t *lock)
{
    struct timespec past = {0};
    if (times_held && times_held--)
        return EBUSY;
    return pthread_mutex_timedlock(lock, &past) ? EBUSY : 0;
}

/* Both wait for a lock, and do all that is to be done, before the thread ends. */
static void *cancelled_in_a_record(void *arg)
{
    pthread_cancel(pthread_self());
    times_held = 2;
    alloc(FIRST, 111, AT(cancelled_in_a_record));
    return arg;
}

static void *cancelled_in_a_begin(void *path)
{
    pthread_cancel(pthread_self());
    times_held = 2;
    trace_begin(path);
    alloc(FIRST, 222, AT(cancelled_in_a_begin));
    return path;
}

static void cancelled(const char *path)
{
    char other[4096];
    pthread_t thread;
    pthread_create(&thread, NULL, cancelled_in_a_record, NULL);
    pthread_join(thread, NULL);
    snprintf(other, sizeof other, "%s.2", path);
    pthread_create(&thread, NULL, cancelled_in_a_begin, other);
    pthread_join(thread, NULL);
    snprintf(other, sizeof other, "%s.3", path);
    trace_begin(other);
    alloc(FIRST, 333, AT(cancelled));
}

/* Functions of a call path, for symbols. */
__attribute__((noinline)) void ask(uint64_t addr, uint64_t size_bytes);
__attribute__((noinline)) void middle(uint64_t addr, uint64_t size_bytes, unsigned depth);
__attribute__((noinline)) void loads(uint64_t addr, uint64_t size_bytes);
__attribute__((noinline)) void trains(uint64_t addr, uint64_t size_bytes);
void ask(uint64_t addr, uint64_t size_bytes)
{
    if (trace_is_on())
        trace_note_alloc(addr, size_bytes, __builtin_return_address(0));
}
void middle(uint64_t addr, uint64_t size_bytes, unsigned depth)
{
    if (depth)
        middle(addr, size_bytes, depth - 1);
    else
        ask(addr, size_bytes);
    __asm__ volatile("");
}
void loads(uint64_t addr, uint64_t size_bytes)
{
    middle(addr, size_bytes, 0);
    __asm__ volatile("");
}
void trains(uint64_t addr, uint64_t size_bytes)
{
    middle(addr, size_bytes, 1);
    __asm__ volatile("");
}

__attribute__((noinline)) static void fails(void)
{
    TRACE_CALL(ALLOC_FAILED, .a = 2, .b = 1 << 30, .caller = __builtin_return_address(0));
}

/* By two paths to the same caller, with small and large sizes; what fails; then without paths. */
__attribute__((noinline)) static void paths(void)
{
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 a GPU");
    fails();
    trace_set_depth(8, true);
    for (uint64_t i = 0; i < 100; i++) {
        loads(FIRST + i * MIB, MIB);
        trains(FIRST + (200 + i * 32) * MIB, 32 * MIB);
        give(FIRST + (200 + i * 32) * MIB, AT(trains));
    }
    trains(FIRST + 150 * MIB, 5 * MIB);
    fails();
    trace_set_depth(8, false);
    loads(FIRST + 160 * MIB, 7 * MIB);
}

/* Of deep paths. */
static void many_paths(void)
{
    trace_set_depth(STACK_FRAMES_MOST, true);
    for (uint64_t i = 0; i < 20000; i++)
        middle(FIRST + i * 512, 512, i * 7 % 50);
}

/* A ring whose chunks follow each other: each knows its paths. */
static void paths_in_a_ring(const char *path)
{
    char other[4096], why[200];
    snprintf(other, sizeof other, "%s.dump", path);
    trace_dump_set_path(other);
    trace_begin_ring();
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
static void rings(const char *path, bool late)
{
    char other[4096];
    pthread_t thread;
    struct timespec pause = {.tv_nsec = 700000000};
    snprintf(other, sizeof other, "%s.dump", path);
    trace_dump_set_path(other);
    trace_begin_ring();
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
static void dumps(const char *path)
{
    char other[4096], why[200];
    pthread_t all[4];
    snprintf(other, sizeof other, "%s.dump", path);
    trace_dump_set_path(other);
    trace_begin_ring();
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
static void lost_in_a_dump(const char *path)
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

static void *one_record(void *arg)
{
    alloc(FIRST + (uint64_t)(uintptr_t)arg * 512, 512, AT(one_record));
    return NULL;
}

static void short_threads(void)
{
    for (uintptr_t i = 0; i < 500; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, one_record, (void *)i);
        pthread_join(thread, NULL);
    }
}

static void killed(void)
{
    for (uint64_t i = 0; i < 30000; i++)
        alloc(FIRST + i * 512, 512, AT(killed));
    raise(SIGKILL);
}

static void again(const char *path)
{
    char other[4096];
    snprintf(other, sizeof other, "%s.2", path);
    alloc(FIRST, 111, AT(again));
    trace_begin(other);
    alloc(FIRST, 222, AT(again));
    trace_begin("");
    alloc(FIRST, 333, AT(again));
}

static void in_a_child(void)
{
    alloc(FIRST, 111, AT(in_a_child));
    pid_t pid = fork();
    if (!pid) {
        trace_leave();
        alloc(FIRST, 222, AT(in_a_child));
        _exit(0);
    }
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    alloc(FIRST, 333, AT(in_a_child));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (!trace_begin(argv[2]))
        return 3;
    trace_objects_note();
    const char *scene = argv[1];
    if (strcmp(scene, "kinds") == 0)
        all_kinds();
    else if (strcmp(scene, "program") == 0)
        a_program();
    else if (strcmp(scene, "hostile") == 0)
        hostile();
    else if (strcmp(scene, "nothing") == 0)
        ;
    else if (strcmp(scene, "threads") == 0)
        threads();
    else if (strncmp(scene, "large:", 6) == 0)
        large(strtoull(scene + 6, NULL, 10));
    else if (strcmp(scene, "short") == 0)
        short_threads();
    else if (strcmp(scene, "paths") == 0)
        paths();
    else if (strcmp(scene, "many-paths") == 0)
        many_paths();
    else if (strcmp(scene, "paths-in-a-ring") == 0)
        paths_in_a_ring(argv[2]);
    else if (strcmp(scene, "killed") == 0)
        killed();
    else if (strcmp(scene, "again") == 0)
        again(argv[2]);
    else if (strcmp(scene, "rings") == 0 || strcmp(scene, "rings-late") == 0)
        rings(argv[2], scene[5] == '-');
    else if (strcmp(scene, "dumps") == 0)
        dumps(argv[2]);
    else if (strcmp(scene, "lost-dump") == 0)
        lost_in_a_dump(argv[2]);
    else if (strcmp(scene, "cancelled") == 0)
        cancelled(argv[2]);
    else if (strcmp(scene, "fork") == 0)
        in_a_child();
    else
        return 2;
    trace_end();
    return 0;
}
