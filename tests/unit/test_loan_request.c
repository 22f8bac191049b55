/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/page/client.c: how it tells a neighbour that will not reply from one that is slow. Each
 * neighbour is a process of the test with a page whose name has its number. */
#include "shim/page/client.h"
#include "shim/page/layout.h"
#include "shim/process/clock.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/unit/proc.h"

#define WAIT_NS (30000 * MS_NS)
#define SHORT_NS (200 * MS_NS)
#define REPLY 4711

/* What the neighbour's process is. LEADERLESS: its first thread has ended. LISTENS: it waits at the
 * doorbell. */
enum kind { HAS_PAGE, OTHER_PROGRAM, LEADERLESS, LEADERLESS_OTHER, LISTENS };

static char folder[64], name[64], path[160];
static struct page *page;
static struct page_id self;
static pid_t child;
static int dir;

static void *sleep_on(void *arg)
{
    if (write(*(int *)arg, "x", 1) != 1)
        _exit(2);
    for (;;)
        pause();
}

static void be_neighbour(enum kind kind, int ready)
{
    pthread_t thread;
    static int fd;
    fd = ready;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (kind == LISTENS && write(ready, "x", 1) == 1)
        for (;;)
            syscall(SYS_futex, &page->doorbell, FUTEX_WAIT, __atomic_load_n(&page->doorbell, 0),
                    NULL, NULL, 0);
    if (kind == OTHER_PROGRAM || kind == LEADERLESS_OTHER)
        munmap(page, sizeof *page); /* as exec does */
    if (kind == HAS_PAGE || kind == OTHER_PROGRAM)
        sleep_on(&fd);
    if (pthread_create(&thread, NULL, sleep_on, &fd))
        _exit(1);
    syscall(SYS_exit, 0); /* this thread alone */
}

/* Makes the page, then the process that has inherited it. */
static void start(enum kind kind)
{
    int ready[2];
    char c;
    snprintf(path, sizeof path, "%s/making", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *page), 0);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(page != MAP_FAILED);
    close(fd);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0)
        be_neighbour(kind, ready[1]);
    assert_true(child > 0);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    snprintf(name, sizeof name, "%llu-%d-9.page", (unsigned long long)self.pid_namespace,
             (int)child);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(renameat(dir, "making", dir, name), 0);
    if (kind == LEADERLESS || kind == LEADERLESS_OTHER)
        assert_true(await_task_state(child, child, 'Z'));
    if (kind == LISTENS)
        assert_true(await_task_state(child, child, 'S'));
}

#define CASE(name) TEST_WITH(name, setup, teardown)
#define CASE_IS(name, call)                                                                        \
    CASE(name)                                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }

static int setup(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/loan_request-XXXXXX");
    assert_true(page_id_self(&self));
    if (!mkdtemp(folder))
        return -1;
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0;
}

static int teardown(void **state)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    munmap(page, sizeof *page);
    unlink(path);
    close(dir);
    return rmdir(folder);
}

static enum loan_request_result ask(uint64_t *bytes, uint64_t *took_ns)
{
    struct loan_request_place late;
    uint64_t start_ns = clock_now_ns();
    struct loan_request q = {.name = name,
                             .self = &self,
                             .uuid_text = "GPU-30313233",
                             .bytes = 1 << 20,
                             .until_ns = start_ns + WAIT_NS,
                             .waits = true};
    struct loan_reply reply;
    enum loan_request_result result = loan_request_make(dir, &q, &reply, &late);
    *bytes = reply.bytes;
    *took_ns = clock_now_ns() - start_ns;
    return result;
}

/* Long after the probes of the doorbell, without ever waiting at it. */
static void *reply_late(void *unused)
{
    for (;;) {
        usleep(1000);
        for (int i = 0; i < PAGE_SLOTS; i++) {
            struct page_slot *s = &page->slots[i];
            uint32_t asked = __atomic_load_n(&s->ask_sequence, __ATOMIC_SEQ_CST);
            if (asked == s->reply_sequence)
                continue;
            usleep(600000);
            s->reply_value = REPLY;
            __atomic_store_n(&s->reply_sequence, asked, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, &s->reply_sequence, FUTEX_WAKE, 8, NULL, NULL, 0);
            return NULL;
        }
    }
}

static void await_late_reply(enum kind kind)
{
    uint64_t bytes, took_ns;
    start(kind);
    pthread_t thread = started(reply_late, NULL);
    assert_int_equal(ask(&bytes, &took_ns), LOAN_REPLIED);
    assert_int_equal(bytes, REPLY);
    pthread_join(thread, NULL);
}

CASE_IS(a_process_that_has_its_page_is_waited_for, await_late_reply(HAS_PAGE))
CASE_IS(a_process_whose_first_thread_has_ended_is_waited_for, await_late_reply(LEADERLESS))

/* The request has less time than the neighbour takes, and more than that for a park. Its number is
 * 1, because the page is new; `parks` is the one for which a park has begun, or 0. */
static enum loan_request_result ask_who_is_slow(uint32_t parks, uint64_t park_ns,
                                                struct loan_reply *reply, bool *waited_on)
{
    struct loan_request_place late;
    atomic_bool waits_on = false;
    for (int i = 0; i < PAGE_SLOTS; i++)
        page->slots[i].parks_sequence = parks;
    uint64_t now_ns = clock_now_ns();
    struct loan_request q = {.name = name,
                             .self = &self,
                             .uuid_text = "GPU-30313233",
                             .bytes = 1 << 20,
                             .until_ns = now_ns + SHORT_NS,
                             .park_until_ns = park_ns ? now_ns + park_ns : 0,
                             .waits_on = &waits_on,
                             .waits = true};
    enum loan_request_result result = loan_request_make(dir, &q, reply, &late);
    *waited_on = atomic_load(&waits_on);
    return result;
}

CASE(a_park_for_the_request_is_waited_for)
{
    struct loan_reply reply;
    bool waited_on;
    start(HAS_PAGE);
    pthread_t thread = started(reply_late, NULL);
    assert_int_equal(ask_who_is_slow(1, WAIT_NS, &reply, &waited_on), LOAN_REPLIED);
    pthread_join(thread, NULL);
    assert_int_equal(reply.bytes, REPLY);
    assert_true(reply.parked && waited_on);
}

/* No reply comes at all. */
static void is_lost(uint32_t parks, uint64_t park_ns)
{
    struct loan_reply reply;
    bool waited_on;
    uint64_t start_ns = clock_now_ns();
    start(HAS_PAGE);
    assert_int_equal(ask_who_is_slow(parks, park_ns, &reply, &waited_on), LOAN_LOST);
    assert_true(clock_now_ns() - start_ns < WAIT_NS);
    assert_int_equal(reply.bytes, 0);
    assert_int_equal(reply.parked, parks == 1);
    assert_int_equal(waited_on, parks == 1);
}

CASE_IS(without_a_park_the_time_is_up, is_lost(0, WAIT_NS))
CASE_IS(a_park_for_another_request_is_not_waited_for, is_lost(2, WAIT_NS))
CASE_IS(nor_one_where_no_park_is_wanted, is_lost(1, 0))
CASE_IS(a_park_that_takes_too_long_is_waited_for_no_more, is_lost(1, 2 * SHORT_NS))

static void loses_soon(void)
{
    uint64_t bytes, took_ns;
    assert_int_equal(ask(&bytes, &took_ns), LOAN_LOST);
    assert_true(took_ns < WAIT_NS / 3);
    /* Nobody carries the request out any more. */
    for (int i = 0; i < PAGE_SLOTS; i++)
        assert_int_equal(page->slots[i].ask_bytes, 0);
}

/* By exec, or because its number was given to another process. */
CASE(a_process_that_runs_another_program_is_not_waited_for)
{
    start(OTHER_PROGRAM);
    loses_soon();
}

CASE(nor_where_its_first_thread_has_ended)
{
    start(LEADERLESS_OTHER);
    loses_soon();
}

CASE(a_stopped_process_is_not_waited_for)
{
    start(HAS_PAGE);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_true(await_task_state(child, child, 'T'));
    loses_soon();
}

/* The first thread of a stopped process stays what it is. */
CASE(nor_a_stopped_one_whose_first_thread_has_ended)
{
    int status;
    start(LEADERLESS);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    loses_soon();
}

CASE(nor_one_that_has_ended)
{
    start(HAS_PAGE);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_true(await_task_state(child, child, 'Z'));
    loses_soon();
    waitpid(child, NULL, 0);
    loses_soon();
}

/* Kills the neighbour when the asker knows that it is there. */
static void *kill_later(void *unused)
{
    for (bool asked = false; !asked; usleep(1000))
        for (int i = 0; i < PAGE_SLOTS; i++)
            asked = asked || __atomic_load_n(&page->slots[i].ask_sequence, __ATOMIC_SEQ_CST);
    usleep(400000);
    kill(child, SIGKILL);
    return NULL;
}

static void loses_soon_one_that_is_killed(enum kind kind)
{
    start(kind);
    pthread_t thread = started(kill_later, NULL);
    loses_soon();
    pthread_join(thread, NULL);
}

CASE_IS(nor_one_that_is_killed_after_it_was_seen, loses_soon_one_that_is_killed(HAS_PAGE))
CASE_IS(nor_one_that_is_killed_after_it_heard_the_bell, loses_soon_one_that_is_killed(LISTENS))

PLAY_TESTS
