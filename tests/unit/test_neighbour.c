/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/share/neighbour.c: which neighbour is asked, and what one that does not reply costs. */
#include "shim/stats/counters.h"
#include "tests/unit/neighbour_rig.h"

/* Of the namespace of the fakes. */
static const struct page_id asker = {.pid_namespace = 5, .pid = 1 << 30, .start_ticks = 1};

/* Time that a test skips. */
static time_t skipped_s;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = __real_clock_gettime(clock, t);
    t->tv_sec += skipped_s;
    return rc;
}

CASE(the_neighbour_with_most_idle_memory_is_asked_first)
{
    struct fake *few = add(REPLIES, 64 * MIB), *most = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(600 * MIB);
    int descriptors = count_fds();
    errno = 77;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(given, 512 * MIB);
    assert_int_equal(atomic_load(&few->asked), 0);
    assert_int_equal(atomic_load(&most->asked), 1);
    assert_non_null(strstr(most->ask, "give gpu=GPU-30313233 bytes=629145600 wait="));
    /* It gave less than was asked for: no more comes from it. */
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(given, 64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    assert_int_equal(errno, 77);
    assert_int_equal(count_fds(), descriptors);
    /* In the next series it may have some again. */
    w = wish(MIB);
    most->has_bytes = 2 * MIB;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&most->asked), 3);
}

/* The page may be ten seconds old. */
CASE(a_neighbour_whose_page_shows_nothing_idle_is_asked_too)
{
    struct fake *stale = add(REPLIES, 0);
    struct neighbour_wish w = wish(MIB);
    stale->has_bytes = 3 * MIB;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(given, MIB);
}

/* It gives all before, and is asked for nothing until it is unlocked. */
CASE(a_neighbour_that_is_locked_is_not_asked)
{
    struct fake *locked = add(REPLIES, 512 * MIB), *other = add(REPLIES, 64 * MIB);
    int pid = (int)locked->page->pid;
    struct neighbour_wish w = wish(MIB);
    uint64_t until_ns = clock_now_ns() + WAIT_NS;
    errno = 77;
    assert_int_equal(neighbour_flush(folder, &asker, 1 << 20, until_ns), 0);
    assert_int_equal(neighbour_flush(folder, &asker, pid, until_ns), 512 * MIB);
    assert_non_null(strstr(locked->ask, "flush wait="));
    neighbour_set_locked(pid, true);
    locked->has_bytes = 512 * MIB;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&other->asked), 1);
    neighbour_set_locked(pid, false);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&locked->asked), 2);
    assert_int_equal(errno, 77);
}

/* In another container a process may have the number of the one that is locked. */
CASE(a_neighbour_of_another_namespace_is_not_locked)
{
    struct fake *locked = add(REPLIES, 64 * MIB), *far = add(REPLIES, 512 * MIB);
    int pid = (int)locked->page->pid;
    char path[sizeof folder + 64];
    far->page->pid_namespace = 6;
    far->page->pid = (uint64_t)pid;
    snprintf(path, sizeof path, "%s/6-%d-9.page", folder, pid);
    assert_int_equal(rename(far->path, path), 0);
    struct neighbour_wish w = wish(MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    neighbour_flush(folder, &asker, pid, clock_now_ns() + WAIT_NS);
    neighbour_set_locked(pid, true);
    w = wish(MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&far->asked), 2);
    neighbour_set_locked(pid, false);
}

/* One that is not unlocked here costs one wait a minute. Once it replies it is one like others. In
 * the past, waits of the kernel are over at once. */
CASE(a_neighbour_that_another_tool_unlocks_is_asked_again)
{
    static const struct {
        time_t at_s;
        enum manner manner;
        enum neighbour_answer answer;
    } steps[] = {{-150, HANGS, NEIGHBOUR_NONE}, {-130, HANGS, NEIGHBOUR_GONE},
                 {-80, HANGS, NEIGHBOUR_NONE},  {-65, HANGS, NEIGHBOUR_GONE},
                 {0, REPLIES, NEIGHBOUR_GAVE},  {0, HANGS, NEIGHBOUR_GONE},
                 {5, HANGS, NEIGHBOUR_NONE},    {15, REPLIES, NEIGHBOUR_GAVE}};
    struct fake *f = add(REPLIES, 64 * MIB);
    int pid = (int)f->page->pid;
    assert_int_equal(neighbour_flush(folder, &asker, pid, clock_now_ns() + WAIT_NS), 64 * MIB);
    skipped_s = -200;
    neighbour_set_locked(pid, true);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        f->manner = steps[i].manner;
        f->has_bytes = 64 * MIB;
        skipped_s = steps[i].at_s;
        struct neighbour_wish w = wish(MIB);
        if (f->manner == HANGS)
            w.until_ns = clock_now_ns() + 200 * MS_NS;
        assert_int_equal(ask(&w), steps[i].answer);
    }
    skipped_s = 0;
}

CASE(a_neighbour_that_took_memory_again_at_once_comes_last)
{
    struct fake *quick = add(REPLIES, 512 * MIB), *few = add(REPLIES, 64 * MIB);
    uint64_t now_ns = clock_now_ns(), before = counter_get(COUNTER_LEND_THRASH);
    quick->page->gpus[1].returned_ns = now_ns - 500 * MS_NS;
    quick->page->gpus[1].regrown_ns = now_ns - 450 * MS_NS;
    struct neighbour_wish w = wish(600 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(given, 64 * MIB);
    assert_int_equal(counter_get(COUNTER_LEND_THRASH), before);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(given, 512 * MIB);
    assert_int_equal(counter_get(COUNTER_LEND_THRASH), before + 1);
    /* Where no program waits it is left alone. */
    quick->has_bytes = few->has_bytes = 64 * MIB;
    w = wish(600 * MIB);
    w.waits = false;
    assert_int_equal(ask(&w), NEIGHBOUR_ASKED);
    assert_int_equal(given, 64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    /* Ten seconds later it is one like others. */
    quick->page->gpus[1].returned_ns = now_ns - 20500 * MS_NS;
    quick->page->gpus[1].regrown_ns = now_ns - 20450 * MS_NS;
    w = wish(600 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&quick->asked), 2);
}

/* A neighbour that gave no reply in time, and is not asked any more. */
static struct fake *add_late(const struct neighbour_wish *w)
{
    struct fake *slow = add(HANGS, 512 * MIB);
    struct neighbour_wish soon = *w;
    soon.until_ns = clock_now_ns() + 200 * MS_NS;
    assert_int_equal(ask(&soon), NEIGHBOUR_GONE);
    assert_int_equal(ask(w), NEIGHBOUR_NONE);
    return slow;
}

/* A slow neighbour is asked again once its reply stands in the page. */
CASE(a_neighbour_that_replied_late_is_not_skipped)
{
    struct neighbour_wish w = wish(64 * MIB);
    struct fake *slow = add_late(&w);
    for (int i = 0; i < PAGE_SLOTS; i++) {
        struct page_slot *s = &slow->page->slots[i];
        __atomic_store_n(&s->reply_sequence, s->ask_sequence, __ATOMIC_SEQ_CST);
    }
    slow->manner = REPLIES;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
}

/* The number of the reply that is missing says nothing there. */
CASE(a_neighbour_whose_page_has_a_new_file_is_not_skipped)
{
    char path[160];
    struct neighbour_wish w = wish(64 * MIB);
    struct fake *slow = add_late(&w);
    snprintf(path, sizeof path, "%s/new", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(pwrite(fd, slow->page, sizeof *slow->page, 0), sizeof *slow->page);
    close(fd);
    assert_int_equal(rename(path, slow->path), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_GONE);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
}

/* Of a process that has ended or is stopped no thread waits at the doorbell. */
CASE(a_neighbour_without_a_waiter_costs_a_moment_once)
{
    struct fake *deaf = add(DEAF, 512 * MIB);
    add(REPLIES, 64 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    uint64_t start_ns = clock_now_ns(), before = counter_get(COUNTER_LEND_TIMEOUT);
    assert_int_equal(ask(&w), NEIGHBOUR_GONE);
    assert_true(clock_now_ns() - start_ns < WAIT_NS / 2);
    assert_int_equal(counter_get(COUNTER_LEND_TIMEOUT), before + 1);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    w = wish(64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_NOTHING);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    /* When it goes on, it finds no request to carry out. */
    for (int i = 0; i < PAGE_SLOTS; i++)
        assert_int_equal(deaf->page->slots[i].ask_bytes, 0);
}

CASE(a_neighbour_that_hangs_costs_its_share_of_the_wait_once)
{
    add(HANGS, 512 * MIB);
    add(REPLIES, 64 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    uint64_t start_ns = clock_now_ns();
    assert_int_equal(ask(&w), NEIGHBOUR_GONE);
    assert_in_range(clock_now_ns() - start_ns, WAIT_NS / 2, w.until_ns - start_ns + 5000 * MS_NS);
    /* Some of the time is left for the other one. */
    assert_true(clock_now_ns() < w.until_ns);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    w = wish(64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_NOTHING);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
}

CASE(a_page_that_is_truncated_meanwhile_harms_nobody)
{
    struct fake *f = add(TRUNCATES, 512 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_GONE);
    assert_int_equal(atomic_load(&f->asked), 1);
}

CASE(requests_without_a_wait_go_to_each_idle_neighbour_once)
{
    struct fake *a = add(REPLIES, 64 * MIB), *b = add(REPLIES, 32 * MIB), *none = add(REPLIES, 0);
    struct neighbour_wish w = wish(512 * MIB);
    uint64_t start_ns = clock_now_ns();
    w.waits = false;
    assert_int_equal(ask(&w), NEIGHBOUR_ASKED);
    assert_int_equal(given, 64 * MIB);
    assert_int_equal(ask(&w), NEIGHBOUR_ASKED);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    while ((!atomic_load(&a->asked) || !atomic_load(&b->asked)) &&
           clock_now_ns() - start_ns < 10000 * MS_NS)
        usleep(1000);
    assert_int_equal(atomic_load(&a->asked) + atomic_load(&b->asked), 2);
    assert_int_equal(atomic_load(&none->asked), 0);
}

struct asker {
    pthread_t thread;
    atomic_int *gave;
};

static void *ask_once(void *arg)
{
    struct asker *a = arg;
    struct neighbour_wish w = wish(MIB);
    w.until_ns += 20000 * MS_NS;
    enum neighbour_answer answer;
    while ((answer = ask(&w)) == NEIGHBOUR_BUSY)
        ;
    atomic_fetch_add(a->gave, answer == NEIGHBOUR_GAVE && given == MIB);
    return NULL;
}

/* So many threads ask at once, and each is given a MiB. */
static void all_are_given(int num_askers, void *(*ask_one)(void *arg))
{
    struct asker askers[20];
    atomic_int gave = 0;
    for (int i = 0; i < num_askers; i++) {
        askers[i].gave = &gave;
        askers[i].thread = started(ask_one, &askers[i]);
    }
    for (int i = 0; i < num_askers; i++)
        pthread_join(askers[i].thread, NULL);
    assert_int_equal(atomic_load(&gave), num_askers);
}

CASE(twenty_threads_ask_one_after_the_other)
{
    add(REPLIES, 20 * MIB);
    all_are_given(20, ask_once);
}

/* A third of what a park takes, but for parks that have begun. */
static void *ask_for_a_park(void *arg)
{
    struct asker *a = arg;
    struct neighbour_wish w = wish(MIB);
    enum neighbour_answer answer;
    w.until_ns = clock_now_ns() + PARK_US * UINT64_C(1000) / 3;
    w.park_until_ns = w.until_ns + 30000 * MS_NS;
    do {
        answer = ask(&w);
        w.until_ns += parked_ns;
    } while (answer == NEIGHBOUR_BUSY);
    atomic_fetch_add(a->gave, answer == NEIGHBOUR_GAVE && given == MIB &&
                                  parked_ns > PARK_US * UINT64_C(1000));
    return NULL;
}

CASE(threads_wait_as_long_as_one_of_them_waits_for_a_park)
{
    add(PARKS, 3 * MIB);
    all_are_given(3, ask_for_a_park);
}

PLAY_TESTS
