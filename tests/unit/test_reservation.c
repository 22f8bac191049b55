/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/driver/reservation.c: a thread asks about an address without a lock, while another one
 * changes the table. The answer is that of the moment before the change or of the one after it. */
#include "tests/unit/steps.h"
/* After it. */
#include "shim/driver/reservation.c"

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

/* As long as two: room for both threads. */
static void another_finds_no_room(void)
{
    int before = num_refused;
    going = NULL;
    other = started(create_another, NULL);
    while (num_refused == before)
        usleep(100);
    usleep(20000);
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

PLAY_TESTS
