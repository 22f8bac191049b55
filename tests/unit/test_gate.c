/* SPDX-License-Identifier: BSD-2-Clause */
/* The gate and the records of submitters, with a park thread of the test's. */
#include "pool/pool.h"
#include "shim/context/submitter.h"
#include "shim/park/gate.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"
#include "tests/unit/cases.h"

#define POOL_ADDR UINT64_C(0x700000000000)
enum { USERS = 4, ROUNDS = 300, CROWD = SUBMITTERS_MAX + 8 };

bool __wrap_pool_owns(uint64_t addr);
bool __wrap_pool_owns(uint64_t addr)
{
    return addr == POOL_ADDR;
}

static atomic_bool go_on, is_inside;

/* The thread of a test: what it does, and what it got. */
struct user {
    pthread_t thread;
    atomic_bool is_done;
    CUresult rc;
    uint64_t ask; /* a question about this address; 0: a use */
};

static void *use_once(void *arg)
{
    struct user *u = arg;
    struct gate_use use;
    errno = 77;
    u->rc = u->ask ? gate_ask_begin(&use, u->ask) : gate_use_begin(&use);
    if (u->rc == CUDA_SUCCESS)
        gate_use_end(&use);
    assert_int_equal(errno, 77);
    atomic_store(&u->is_done, true);
    return NULL;
}

static void *stay_inside(void *arg)
{
    struct gate_use use;
    assert_int_equal(gate_use_begin(&use), CUDA_SUCCESS);
    atomic_store(&is_inside, true);
    while (!atomic_load(&go_on))
        usleep(100);
    assert_false(submitters_are_idle()); /* no handler has ended the mark */
    gate_use_end(&use);
    return NULL;
}

static void start(struct user *u, void *(*run)(void *))
{
    atomic_store(&u->is_done, false);
    u->thread = started(run, u);
}

static void finish(struct user *u)
{
    assert_int_equal(pthread_join(u->thread, NULL), 0);
}

static void start_inside(struct user *u)
{
    atomic_store(&go_on, false);
    atomic_store(&is_inside, false);
    start(u, stay_inside);
    while (!atomic_load(&is_inside))
        usleep(100);
}

static void close_gate(void)
{
    assert_true(gate_close());
    assert_true(gate_drain(SEC_NS));
}

static void park(void)
{
    close_gate();
    assert_true(gate_leave());
    gate_is_parked();
}

static void await(enum gate_state state)
{
    for (uint32_t seen = gate_bell(); gate_state() != state; seen = gate_bell())
        gate_await_bell(seen, UINT64_MAX);
}

/* All is parked, and a thread has come to the gate. */
static void park_and_arrive(struct user *u)
{
    park();
    start(u, use_once);
    await(GATE_WAKING);
}

/* It is let in. */
static void let_in(struct user *u)
{
    gate_open();
    finish(u);
    assert_int_equal(u->rc, CUDA_SUCCESS);
}

TEST(without_a_pool_there_is_no_mark)
{
    struct gate_use use;
    atomic_store(&pool_watch, 0);
    assert_int_equal(gate_use_begin(&use), CUDA_SUCCESS);
    assert_null(use.s);
    gate_use_end(&use);
    atomic_store(&pool_watch, POOL_WATCH_ERRORS);
    assert_int_equal(gate_use_begin(&use), CUDA_SUCCESS);
    assert_non_null(use.s);
    assert_false(submitters_are_idle());
    gate_use_end(&use);
    assert_true(submitters_are_idle());
}

TEST(a_thread_inside_a_use_keeps_the_gate_from_being_left)
{
    struct user u = {0};
    start_inside(&u);
    assert_true(gate_close());
    uint64_t start_ns = clock_now_ns();
    assert_false(gate_drain(20 * MS_NS));
    assert_true(clock_now_ns() - start_ns >= 20 * MS_NS);
    assert_true(gate_is_closing());
    atomic_store(&go_on, true);
    assert_true(gate_drain(SEC_NS));
    let_in(&u);
}

TEST(an_arrival_cancels_a_park_that_copies)
{
    struct user u = {0};
    close_gate();
    start(&u, use_once);
    while (gate_pause(SEC_NS))
        ;
    assert_false(gate_leave());
    usleep(1000);
    assert_false(atomic_load(&u.is_done)); /* it waits until the park thread has undone its steps */
    let_in(&u);
    assert_int_equal(atomic_load(&pool_watch), POOL_WATCH_ERRORS);
}

TEST(arrivals_wake_once_and_go_on_when_the_gate_is_open)
{
    struct user u[USERS] = {0};
    park();
    for (int i = 0; i < USERS; i++)
        start(&u[i], use_once);
    await(GATE_WAKING);
    assert_false(gate_wake());
    usleep(1000);
    while (!submitters_are_idle()) /* at the gate they have no mark */
        usleep(1000);
    for (int i = 0; i < USERS; i++)
        assert_false(atomic_load(&u[i].is_done));
    gate_open();
    for (int i = 0; i < USERS; i++) {
        finish(&u[i]);
        assert_int_equal(u[i].rc, CUDA_SUCCESS);
    }
    assert_int_equal(gate_state(), GATE_OPEN);
}

/* It sleeps when the state is PARKED at last, and must not sleep on. */
TEST(a_use_that_arrives_while_the_gate_is_left_wakes)
{
    struct user u = {0};
    close_gate();
    assert_true(gate_leave());
    start(&u, use_once);
    usleep(20000);
    assert_int_equal(gate_state(), GATE_LEAVING);
    gate_is_parked();
    await(GATE_WAKING);
    let_in(&u);
}

TEST(more_memory_may_go_while_parked)
{
    struct user u = {0};
    park();
    assert_true(gate_leave());
    start(&u, use_once);
    usleep(1000);
    assert_false(gate_wake());
    gate_is_parked();
    await(GATE_WAKING);
    assert_false(gate_leave());
    let_in(&u);
}

TEST(uses_that_waited_get_the_error_of_a_wake_and_the_next_waits_anew)
{
    struct user u = {0}, next = {0};
    park_and_arrive(&u);
    gate_fail(CUDA_ERROR_OUT_OF_MEMORY);
    finish(&u);
    assert_int_equal(u.rc, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(gate_state(), GATE_PARKED);
    assert_true(submitters_are_idle());
    start(&next, use_once);
    await(GATE_WAKING);
    let_in(&next);
}

static atomic_bool driver_is_open;

static bool may_go(void)
{
    return atomic_load(&driver_is_open);
}

static void *await_driver(void *arg)
{
    struct user *u = arg;
    errno = 77;
    u->rc = gate_arrive_until(may_go);
    assert_int_equal(errno, 77);
    atomic_store(&u->is_done, true);
    return NULL;
}

/* The gate is being left, and the thread sleeps in front of a driver that is closed. */
static void leave_and_await_driver(struct user *u)
{
    atomic_store(&driver_is_open, false);
    close_gate();
    assert_true(gate_leave());
    start(u, await_driver);
    usleep(20000);
    assert_int_equal(gate_state(), GATE_LEAVING);
}

static void open_driver(struct user *u)
{
    atomic_store(&driver_is_open, true);
    gate_look_again();
    finish(u);
    assert_int_equal(u->rc, CUDA_SUCCESS);
}

TEST(who_waits_for_the_driver_wakes_and_goes_on_before_the_gate_is_open)
{
    struct user u = {0};
    leave_and_await_driver(&u);
    gate_is_parked();
    await(GATE_WAKING);
    usleep(1000);
    assert_false(atomic_load(&u.is_done));
    open_driver(&u);
    assert_int_equal(gate_state(), GATE_WAKING);
    gate_open();
}

TEST(who_waits_for_a_driver_that_opens_at_once_wakes_nothing)
{
    struct user u = {0};
    leave_and_await_driver(&u);
    open_driver(&u);
    gate_is_parked();
    usleep(1000);
    assert_int_equal(gate_state(), GATE_PARKED);
    gate_open();
}

TEST(who_waits_for_the_driver_gets_the_error_of_a_wake)
{
    struct user u = {0};
    leave_and_await_driver(&u);
    gate_is_parked();
    await(GATE_WAKING);
    gate_fail(CUDA_ERROR_OUT_OF_MEMORY);
    finish(&u);
    assert_int_equal(u.rc, CUDA_ERROR_OUT_OF_MEMORY);
    gate_open();
}

TEST(only_questions_about_pool_memory_wake)
{
    struct user other = {.ask = 4096}, ours = {.ask = POOL_ADDR};
    park();
    start(&other, use_once);
    finish(&other);
    assert_int_equal(other.rc, CUDA_SUCCESS);
    assert_int_equal(gate_state(), GATE_PARKED);
    start(&ours, use_once);
    await(GATE_WAKING);
    assert_false(atomic_load(&ours.is_done));
    let_in(&ours);
}

static struct user in_handler;

static void use_in_handler(int signal)
{
    int saved_errno = errno;
    use_once(&in_handler);
    errno = saved_errno;
}

TEST(a_handlers_use_inside_a_use_cancels_and_leaves_the_mark)
{
    struct user u = {0};
    struct sigaction action = {.sa_handler = use_in_handler};
    sigaction(SIGUSR2, &action, NULL);
    start_inside(&u);
    assert_true(gate_close());
    pthread_kill(u.thread, SIGUSR2);
    assert_false(gate_drain(10 * SEC_NS));
    assert_false(gate_is_closing());
    gate_open();
    while (!atomic_load(&in_handler.is_done))
        usleep(100);
    assert_int_equal(in_handler.rc, CUDA_SUCCESS);
    assert_false(submitters_are_idle());
    atomic_store(&go_on, true);
    finish(&u);
    assert_true(submitters_are_idle());
}

/* It sleeps at the gate when the handler comes. */
TEST(a_handlers_use_at_the_gate_waits_with_its_thread)
{
    struct user u = {0};
    atomic_store(&in_handler.is_done, false);
    park_and_arrive(&u);
    pthread_kill(u.thread, SIGUSR2);
    usleep(1000);
    assert_false(atomic_load(&in_handler.is_done));
    let_in(&u);
    assert_true(atomic_load(&in_handler.is_done));
    assert_true(submitters_are_idle());
}

TEST(a_thread_that_is_cancelled_inside_a_use_leaves_no_mark)
{
    struct user u = {0};
    start_inside(&u);
    assert_false(submitters_are_idle());
    pthread_cancel(u.thread);
    finish(&u);
    assert_true(submitters_are_idle());
}

TEST(uses_are_counted_and_stand_still_without_any)
{
    struct user u = {0};
    uint64_t before = submitters_uses();
    for (int i = 1; i <= 3; i++) {
        start(&u, use_once);
        finish(&u);
        assert_int_equal(submitters_uses(), before + (uint64_t)i);
    }
    assert_int_equal(submitters_uses(), before + 3);
}

TEST(a_use_without_work_is_no_other_streams_work)
{
    struct user u = {0};
    start_inside(&u);
    assert_false(submitters_have_other(8));
    atomic_store(&go_on, true);
    finish(&u);
    struct submitter *s = submitter_find();
    submitter_mark(s, 16);
    assert_true(submitters_have_other(8));
    assert_false(submitters_have_other(16));
    submitter_unmark(s);
    assert_false(submitters_have_other(8));
}

static atomic_bool is_away, stops;
static uint64_t memory;
static atomic_uint late;

static void *use_all_the_time(void *arg)
{
    struct gate_use use;
    while (!atomic_load(&stops)) {
        assert_int_equal(gate_use_begin(&use), CUDA_SUCCESS);
        if (atomic_load(&is_away))
            atomic_fetch_add(&late, 1);
        if (memory > ROUNDS)
            atomic_fetch_add(&late, 1);
        gate_use_end(&use);
        usleep(50);
    }
    return NULL;
}

/* memory is plain data that the park thread writes and uses read: the thread sanitizer sees a use
 * that is not ordered with the park. */
TEST(no_use_is_with_the_driver_while_memory_is_away)
{
    struct user u[USERS] = {0};
    unsigned parks = 0;
    atomic_store(&stops, false);
    for (int i = 0; i < USERS; i++)
        start(&u[i], use_all_the_time);
    for (int i = 0; i < ROUNDS; i++) {
        assert_true(gate_close());
        if (gate_drain(10 * MS_NS) && gate_leave()) {
            atomic_store(&is_away, true);
            memory++;
            gate_is_parked();
            parks++;
            await(GATE_WAKING);
            atomic_store(&is_away, false);
        }
        gate_open();
        usleep(100);
    }
    atomic_store(&stops, true);
    for (int i = 0; i < USERS; i++)
        finish(&u[i]);
    assert_true(parks > 0);
    assert_int_equal(late, 0);
}

/* Many at once: they sleep longer. */
static void *stay_in_the_crowd(void *arg)
{
    struct gate_use use;
    assert_int_equal(gate_use_begin(&use), CUDA_SUCCESS);
    while (!atomic_load(&go_on))
        usleep(100000);
    gate_use_end(&use);
    return NULL;
}

/* The last test: from here on a thread has no record. */
TEST(more_threads_than_records_refuse_the_park)
{
    static struct user u[CROWD];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 128 << 10);
    atomic_store(&go_on, false);
    assert_false(submitters_are_missed());
    int count = 0;
    for (; count < CROWD; count++)
        if (pthread_create(&u[count].thread, &attr, stay_in_the_crowd, &u[count]))
            break;
    if (count == CROWD)
        while (!submitters_are_missed())
            usleep(1000);
    atomic_store(&go_on, true);
    for (int i = 0; i < count; i++)
        finish(&u[i]);
    if (count < CROWD)
        skip();
    assert_true(submitters_are_idle());
    assert_true(gate_close());
    assert_false(gate_drain(10 * MS_NS));
    assert_true(gate_is_closing());
    gate_open();
}

static int start_library(void **state)
{
    return state_claim() ? state_settle(true), 0 : -1;
}

int main(void)
{
    return play_tests(start_library, NULL);
}
