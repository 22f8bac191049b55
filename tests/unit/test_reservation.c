/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/driver/reservation.c: a thread asks about an address without a lock, while another one
 * changes the table. The answer is that of the moment before the change or of the one after it. */
#include "tests/unit/steps.h"
/* After it. */
#define spin_pause pause_here
#include "shim/driver/reservation.c"
#undef spin_pause

#include <limits.h>

#include "tests/unit/cases.h"

#define PAGE ((size_t)2 << 20)
#define BASE ((CUdeviceptr)0x7e << 40)
enum { MANY = 3 * PART_RANGES, ROUNDS = 20000 };

/* A driver that reserves whatever it is told to. */
static CUdeviceptr next;
static atomic_int num_there; /* ranges */
static int most_there = INT_MAX;
static atomic_int num_refused;
static void (*going)(void); /* while a range goes, and is there yet */

static CUresult reserve(CUdeviceptr *addr, size_t size, size_t align, CUdeviceptr hint,
                        unsigned long long flags)
{
    if (num_there >= most_there) {
        num_refused++;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    num_there++;
    *addr = next;
    return CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr addr, size_t size)
{
    if (going)
        going();
    num_there--;
    return CUDA_SUCCESS;
}

/* What a signal handler does while the calling thread waits. */
static __thread void (*pausing)(void);

void spin_pause(unsigned turn);

void pause_here(unsigned turn)
{
    void (*handler)(void) = pausing;
    pausing = NULL;
    if (handler)
        handler();
    spin_pause(turn);
}

struct hooks_real real = {.cuMemAddressReserve = reserve, .cuMemAddressFree = unreserve};

static void create(CUdeviceptr addr, size_t size_bytes)
{
    CUdeviceptr got = 0;
    next = addr;
    assert_int_equal(reservation_create(&got, size_bytes, PAGE), CUDA_SUCCESS);
    assert_true(got == addr);
}

TEST(every_byte_of_a_range_is_covered_and_no_other)
{
    for (size_t i = 0; i < MANY; i++)
        create(BASE + 2 * i * PAGE, PAGE);
    for (size_t i = 0; i < MANY; i++) {
        CUdeviceptr at = BASE + 2 * i * PAGE;
        assert_true(reservation_covers(at, 1) && reservation_covers(at + PAGE - 1, 1));
        assert_false(reservation_covers(at - 1, 1) || reservation_covers(at + PAGE, PAGE));
        assert_true(reservation_covers(at - PAGE, PAGE + 1) &&
                    reservation_covers(at - 1, 9 * PAGE));
    }
    /* Every other one goes, in an order of their own. */
    for (size_t i = 0; i < MANY; i += 2)
        reservation_destroy(BASE + 2 * i * PAGE, PAGE);
    for (size_t i = 0; i < MANY; i++)
        assert_int_equal(reservation_covers(BASE + 2 * i * PAGE, 1), i % 2);
    for (size_t i = 1; i < MANY; i += 2)
        reservation_destroy(BASE + 2 * i * PAGE, PAGE);
    assert_false(reservation_covers(0, SIZE_MAX));
}

/* The table moves its last range to where another one goes. */
static void first_goes(void *arg)
{
    reservation_destroy(BASE, PAGE);
}

TEST(a_range_that_stays_is_covered_while_another_one_goes)
{
    for (unsigned at = 1;; at++) {
        struct steps steps = {.step = first_goes, .at = at};
        create(BASE, PAGE);
        create(BASE + 8 * PAGE, PAGE);
        steps_mine = &steps;
        bool covered = reservation_covers(BASE + 8 * PAGE, 1);
        steps_mine = NULL;
        bool changed = steps.loads >= at;
        if (!changed)
            reservation_destroy(BASE, PAGE);
        reservation_destroy(BASE + 8 * PAGE, PAGE);
        assert_true(covered);
        if (!changed)
            break;
        assert_true(at < 100);
    }
}

/* A long range takes the place of a short one. The addresses behind the short one are nobody's. */
static void a_long_one_takes_the_place(void *arg)
{
    reservation_destroy(BASE, PAGE);
    create(BASE + 64 * PAGE, 32 * PAGE);
}

TEST(no_answer_mixes_two_ranges)
{
    for (unsigned at = 1;; at++) {
        struct steps steps = {.step = a_long_one_takes_the_place, .at = at};
        create(BASE, PAGE);
        steps_mine = &steps;
        bool covered = reservation_covers(BASE + 4 * PAGE, 1);
        steps_mine = NULL;
        bool changed = steps.loads >= at;
        reservation_destroy(changed ? BASE + 64 * PAGE : BASE, PAGE);
        assert_false(covered);
        if (!changed)
            break;
        assert_true(at < 100);
    }
}

static atomic_bool done;

static void *change(void *unused)
{
    for (size_t i = 0; i < ROUNDS; i++) {
        create(BASE, PAGE);
        create(BASE + 64 * PAGE, 32 * PAGE);
        reservation_destroy(BASE, PAGE);
        reservation_destroy(BASE + 64 * PAGE, 32 * PAGE);
    }
    atomic_store(&done, true);
    return NULL;
}

TEST(threads_ask_while_another_one_changes)
{
    create(BASE + 16 * PAGE, PAGE);
    pthread_t thread = started(change, NULL);
    while (!atomic_load(&done)) {
        assert_true(reservation_covers(BASE + 16 * PAGE, 1));
        assert_false(reservation_covers(BASE + 4 * PAGE, 1));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    reservation_destroy(BASE + 16 * PAGE, PAGE);
}

static bool is_reserved(CUdeviceptr at)
{
    return reservation_covers(at, 1);
}

/* The driver can give these addresses to nobody meanwhile. */
TEST(a_range_that_has_ended_goes_after_some_more)
{
    for (size_t i = 0; i <= RESERVATIONS_RETIRED; i++) {
        create(BASE + i * PAGE, PAGE);
        reservation_retire(BASE + i * PAGE, PAGE);
        assert_int_equal(is_reserved(BASE), i < RESERVATIONS_RETIRED);
    }
    assert_int_equal(num_there, RESERVATIONS_RETIRED);
    /* Where the driver has no other addresses, the oldest goes, and no more than must. */
    most_there = RESERVATIONS_RETIRED;
    create(BASE + 64 * PAGE, PAGE);
    assert_int_equal(num_there, RESERVATIONS_RETIRED);
    assert_false(is_reserved(BASE + PAGE));
    assert_true(is_reserved(BASE + 2 * PAGE));
    most_there = 1;
    CUdeviceptr none;
    assert_int_equal(reservation_create(&none, PAGE, PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    most_there = INT_MAX;
    reservation_destroy(BASE + 64 * PAGE, PAGE);
    assert_int_equal(num_there, 0);
}

static void all_retired_go(void)
{
    CUdeviceptr none;
    most_there = 0;
    assert_int_equal(reservation_create(&none, PAGE, PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(num_there, 0);
    most_there = INT_MAX;
}

TEST(a_range_that_went_early_leaves_its_place_to_the_next)
{
    for (size_t i = 0; i < 2; i++) {
        create(BASE + i * PAGE, PAGE);
        reservation_retire(BASE + i * PAGE, PAGE);
    }
    most_there = 2;
    create(BASE + 64 * PAGE, PAGE); /* the first one goes */
    most_there = INT_MAX;
    for (size_t i = 2; i <= RESERVATIONS_RETIRED; i++) {
        create(BASE + i * PAGE, PAGE);
        reservation_retire(BASE + i * PAGE, PAGE);
        assert_false(is_reserved(BASE));
        assert_true(is_reserved(BASE + PAGE));
    }
    reservation_destroy(BASE + 64 * PAGE, PAGE);
    all_retired_go();
}

static pthread_t other;

static void *create_another(void *unused)
{
    CUdeviceptr got;
    return reservation_create(&got, PAGE, PAGE) == CUDA_SUCCESS ? &other : NULL;
}

static void await_refusals(int num)
{
    while (num_refused < num)
        usleep(100);
}

/* The driver takes its time over a range as long as two: room for both threads. */
static void another_finds_no_room(void)
{
    int before = num_refused;
    going = NULL;
    other = started(create_another, NULL);
    await_refusals(before + 1);
    usleep(300000);
    num_there--;
}

TEST(a_range_that_is_going_is_waited_for)
{
    void *created;
    create(BASE, 2 * PAGE);
    reservation_retire(BASE, 2 * PAGE);
    num_there = most_there = 2;
    going = another_finds_no_room;
    create(BASE + 64 * PAGE, PAGE);
    assert_int_equal(pthread_join(other, &created), 0);
    assert_non_null(created);
    assert_int_equal(num_there, 2);
    most_there = INT_MAX;
    reservation_destroy(BASE + 64 * PAGE, PAGE);
    reservation_destroy(BASE + 64 * PAGE, PAGE);
}

/* There is no room but where these go. */
static void retire(size_t num)
{
    for (size_t i = 0; i < num; i++) {
        create(BASE + i * PAGE, PAGE);
        reservation_retire(BASE + i * PAGE, PAGE);
    }
    most_there = (int)num;
}

static void destroy_all(void)
{
    assert_int_equal(num_retired + num_going + num_held, 0);
    going = NULL;
    most_there = INT_MAX;
    while (num_ranges)
        reservation_destroy(first.ranges[0].addr, PAGE);
    assert_int_equal(num_there, 0);
}

/* As reservation_retire does, where enough others have ended. */
static void *destroy_oldest(void *unused)
{
    pthread_mutex_lock(&lock);
    struct retired oldest = take_retired();
    pthread_mutex_unlock(&lock);
    destroy_retired(oldest);
    return NULL;
}

/* A signal handler in the midst of the driver's call. */
static bool first_created, second_created;

static void a_handler_creates(void)
{
    going = NULL;
    first_created = create_another(NULL);
}

TEST(a_handler_waits_for_no_range_of_its_own_thread)
{
    retire(1);
    going = a_handler_creates;
    uint64_t start_ns = clock_now_ns();
    destroy_oldest(NULL);
    assert_true(clock_now_ns() - start_ns < AWAIT_NS);
    assert_false(first_created);
    destroy_all();
}

static pthread_barrier_t inside;
static atomic_int num_created;

static void each_handler_creates(void)
{
    pthread_barrier_wait(&inside);
    num_created += create_another(NULL) != NULL;
}

TEST(handlers_in_threads_that_destroy_wait_in_no_circle)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    retire(THREADS);
    pthread_barrier_init(&inside, NULL, THREADS);
    going = each_handler_creates;
    uint64_t start_ns = clock_now_ns();
    for (size_t i = 0; i < THREADS; i++)
        threads[i] = started(destroy_oldest, NULL);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(clock_now_ns() - start_ns < AWAIT_NS);
    assert_true(num_created >= THREADS - 1); /* one gave up, and its range went */
    destroy_all();
}

static atomic_bool is_going;

/* As long as two. */
static void goes_once_two_are_refused(void)
{
    int before = num_refused;
    is_going = true;
    await_refusals(before + 2);
    usleep(20000);
    num_there--;
}

static void a_second_handler_creates(void)
{
    second_created = create_another(NULL);
}

static void two_handlers_create(void)
{
    pausing = a_second_handler_creates;
    a_handler_creates();
}

TEST(a_handler_beside_a_handler_that_waits_may_wait_too)
{
    retire(2);
    num_there = most_there = 3;
    going = goes_once_two_are_refused;
    other = started(destroy_oldest, NULL);
    while (!is_going)
        usleep(100);
    going = two_handlers_create;
    destroy_oldest(NULL);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_true(first_created && second_created);
    destroy_all();
}

/* As in a child that has not the thread that destroys. */
TEST(a_range_that_never_goes_is_not_waited_for_for_ever)
{
    CUdeviceptr none;
    num_going = 1;
    began_ns = clock_now_ns() - AWAIT_NS + 20 * MS_NS;
    most_there = 0;
    assert_int_equal(reservation_create(&none, PAGE, PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    most_there = INT_MAX;
    num_going = 0;
}

TEST(a_range_that_never_goes_costs_its_time_once)
{
    CUdeviceptr none;
    retire(RESERVATIONS_RETIRED);
    num_going = 1;
    began_ns = clock_now_ns() - AWAIT_NS + 20 * MS_NS;
    most_there = 0;
    uint64_t start_ns = clock_now_ns();
    assert_int_equal(reservation_create(&none, PAGE, PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(clock_now_ns() - start_ns < AWAIT_NS / 2);
    most_there = INT_MAX;
    num_going = 0;
}

PLAY_TESTS
