/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/trace/beside.c: what is kept of memory beside the pool, and how much of it. */
#include "shim/stats/counters.h"
#include "shim/trace/beside.h"
#include "shim/trace/fast.h"
#include "shim/trace/ring.h"
#include "tests/unit/cases.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define FIRST UINT64_C(0x7f0000000000)
#define PAGE (UINT64_C(2) << 20)

static size_t count, held;
static uint64_t lost;

static void count_record(const struct trace_beside *record)
{
    count++;
    held += record->is_held;
}

static void expect_of(uint64_t since_ticks, size_t records, size_t live)
{
    count = held = 0;
    assert_true(trace_beside_each(atomic_load(&trace_now), since_ticks, count_record));
    assert_int_equal(count, records);
    assert_int_equal(held, live);
}

/* What was live by now. */
static void expect(size_t records, size_t live)
{
    expect_of(UINT64_MAX, records, live);
}

static void look_for_lost(const struct trace_seen *record)
{
    if (record->kind == TRACE_LOST)
        lost = record->a;
}

static void look_in_chunk(const struct trace_chunk *chunk, size_t used_bytes, bool lost_before)
{
    (void)lost_before;
    trace_ring_read(chunk, used_bytes, look_for_lost);
}

static void expect_lost(uint64_t records)
{
    lost = 0;
    trace_note_lost();
    assert_true(trace_ring_lock());
    trace_ring_each(atomic_load(&trace_now), UINT64_MAX, look_in_chunk);
    trace_ring_unlock();
    assert_int_equal(lost, records);
}

static void come(uint64_t name, enum counter group)
{
    TRACE_BESIDE(PASSED, 0, .a = name, .b = PAGE, .aux = group);
}

TEST(what_has_no_room_is_told)
{
    const uint64_t most = TRACE_BESIDE_MAX / 4 * 3, more = 1000;
    trace_begin_ring();
    for (uint64_t i = 1; i <= most + more; i++)
        come(i * 512, COUNTER_ASYNC);
    expect(most, most);
    expect_lost(more);
    /* There is room for what goes. */
    for (uint64_t i = 1; i <= most + more; i++)
        TRACE_BESIDE(FREE_ASYNC, 0, .a = i * 512);
    expect(0, 0);
    come(512, COUNTER_ASYNC);
    expect(1, 1);
    expect_lost(more);
}

TEST(what_is_gone_makes_room)
{
    trace_begin_ring();
    come(FIRST, COUNTER_VMM);
    TRACE_BESIDE(PASSED_MAP, PAGE, .a = FIRST + PAGE, .b = FIRST);
    for (uint64_t i = 1; i <= TRACE_BESIDE_MAX; i++) {
        come(i * 512, COUNTER_ASYNC);
        TRACE_BESIDE(FREE_ASYNC, 0, .a = i * 512);
        TRACE_BESIDE(PASSED_HOLD, 0, .a = FIRST);
        TRACE_BESIDE(PASSED_FREE, 0, .a = FIRST);
    }
    expect(2, 1);
    expect_lost(0);
    TRACE_BESIDE(PASSED_FREE, 0, .a = FIRST);
    expect(3, 1);
    TRACE_BESIDE(PASSED_UNMAP, 0, .a = FIRST + PAGE, .b = PAGE);
    expect(0, 0);
}

static void *record_once(void *together)
{
    come(FIRST + 9 * PAGE, COUNTER_ASYNC);
    TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST + 9 * PAGE);
    pthread_barrier_wait(together);
    pthread_barrier_wait(together);
    return NULL;
}

/* Its ring has its old records for ever. */
TEST(what_is_gone_makes_room_beside_an_idle_thread)
{
    pthread_barrier_t together;
    pthread_t thread;
    trace_begin_ring();
    assert_int_equal(pthread_barrier_init(&together, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, record_once, &together), 0);
    pthread_barrier_wait(&together);
    for (uint64_t i = 1; i <= TRACE_BESIDE_MAX; i++) {
        come(i * 512, COUNTER_VMM);
        TRACE_BESIDE(PASSED_FREE, 0, .a = i * 512);
        if (i % 100 == 0)
            TRACE_BESIDE(FREE, 0, .a = FIRST - i);
    }
    for (uint64_t i = 0; i < 9; i++)
        come(FIRST + i * PAGE, COUNTER_ASYNC);
    expect(9, 9);
    expect_lost(0);
    pthread_barrier_wait(&together);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&together);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* As that of imported memory: 0.02 s, and 3 s where each looks at all records before it, or at all
 * that is mapped. What comes and goes takes as long. */
TEST(unmappings_of_what_is_not_known_take_no_time)
{
    const uint64_t mappings = 1 << 14;
    trace_begin_ring();
    uint64_t start_ns = cpu_ns();
    for (uint64_t i = 1; i <= TRACE_BESIDE_MAX / 4; i++) {
        come(FIRST, COUNTER_ASYNC);
        TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST);
    }
    uint64_t usual_ns = cpu_ns() - start_ns;
    come(FIRST, COUNTER_VMM);
    for (uint64_t i = 1; i <= mappings; i++)
        TRACE_BESIDE(PASSED_MAP, PAGE, .a = FIRST + i * PAGE, .b = FIRST);
    start_ns = cpu_ns();
    for (uint64_t i = 1; i <= TRACE_BESIDE_MAX / 4; i++) {
        TRACE_BESIDE(PASSED_MAP, 4 * PAGE, .a = FIRST - 4 * PAGE, .b = 512);
        TRACE_BESIDE(PASSED_UNMAP, 0, .a = FIRST - 4 * PAGE, .b = 4 * PAGE);
    }
    assert_in_range(cpu_ns() - start_ns, 0, 10 * usual_ns);
    expect(1 + mappings, 1);
    expect_lost(0);
}

/* So much more host memory and no more. */
static void limit_host_memory(struct rlimit *before, uint64_t more_bytes)
{
    uint64_t pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    assert_non_null(statm);
    assert_int_equal(fscanf(statm, "%" SCNu64, &pages), 1);
    fclose(statm);
    assert_int_equal(getrlimit(RLIMIT_AS, before), 0);
    struct rlimit limit = *before;
    limit.rlim_cur = pages * (uint64_t)sysconf(_SC_PAGESIZE) + more_bytes;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

/* There is host memory to look through it, and not for a larger one. A look takes 10 ms. A
 * sanitizer needs memory of its own. */
TEST(a_list_that_cannot_grow_takes_no_time_and_tells_what_goes)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    const uint64_t live = 110000, more = 300;
    struct rlimit before;
    trace_begin_ring();
    for (uint64_t i = 1; i <= 90000; i++)
        come(FIRST + i * 512, COUNTER_ASYNC);
    uint64_t start_ns = cpu_ns();
    expect(90000, 90000);
    uint64_t look_ns = cpu_ns() - start_ns;
    limit_host_memory(&before, 9500000);
    for (uint64_t i = 90001; i <= live; i++)
        come(FIRST + i * 512, COUNTER_ASYNC);
    for (uint64_t i = 1; i <= 22000; i++)
        TRACE_BESIDE(FREE, 0, .a = FIRST - i * 512);
    start_ns = cpu_ns();
    for (uint64_t i = 0; i < more; i++) {
        come(FIRST, COUNTER_ASYNC);
        TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST);
    }
    for (uint64_t i = 1; i <= live; i++)
        TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST + i * 512);
    uint64_t took_ns = cpu_ns() - start_ns;
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_in_range(took_ns, 0, 20 * look_ns);
    expect(0, 0);
}

TEST(memory_of_the_host_has_no_holder)
{
    trace_begin_ring();
    come(FIRST, COUNTER_HOST);
    come(FIRST + PAGE, COUNTER_MANAGED);
    come(FIRST + 2 * PAGE, COUNTER_ARRAY);
    expect(3, 1);
}

TEST(what_goes_later_was_there)
{
    trace_begin_ring();
    come(FIRST, COUNTER_ASYNC);
    come(FIRST + PAGE, COUNTER_ASYNC);
    TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST);
    uint64_t since = trace_mine->ticks + 1;
    come(FIRST, COUNTER_ASYNC);
    TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST + PAGE);
    expect_of(since, 3, 1); /* the second one, the first one's second life, and the free */
}

TEST(an_unmapping_of_any_size_ends)
{
    trace_begin_ring();
    come(FIRST, COUNTER_VMM);
    for (uint64_t i = 1; i <= 4; i++)
        TRACE_BESIDE(PASSED_MAP, PAGE, .a = FIRST + 2 * i * PAGE, .b = FIRST);
    TRACE_BESIDE(PASSED_FREE, 0, .a = FIRST);
    TRACE_BESIDE(PASSED_UNMAP, 0, .a = FIRST + 4 * PAGE, .b = 3 * PAGE); /* with a hole */
    expect(4, 1);
    TRACE_BESIDE(PASSED_UNMAP, 0, .a = FIRST, .b = UINT64_MAX / 2);
    expect(0, 0);
}

TEST(a_new_trace_begins_without)
{
    trace_begin_ring();
    come(FIRST, COUNTER_ASYNC);
    trace_begin_ring();
    expect(0, 0);
    TRACE_BESIDE(FREE_ASYNC, 0, .a = FIRST);
    expect(0, 0);
    come(FIRST, COUNTER_ASYNC);
    expect(1, 1);
    trace_end();
    come(FIRST + PAGE, COUNTER_ASYNC); /* no trace is on */
    assert_int_equal(atomic_load(&trace_now), 0);
}

PLAY_TESTS
