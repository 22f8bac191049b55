/* SPDX-License-Identifier: BSD-2-Clause
 *
 * shim/share/neighbour.c: which neighbour is asked, and what one that does not reply costs. The
 * neighbours are pages that threads of the test serve. Their names have a pid namespace of their
 * own, so no code looks for their processes.
 */
#include "shim/process/clock.h"
#include "shim/share/neighbour.h"

#include "shim/stats/counters.h"
#include "tests/unit/cases.h"
#include "tests/unit/fake_neighbour.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB UINT64_C(1048576)
#define WAIT_NS (3000 * MS_NS)

static struct page_id self = {.pid_namespace = 77, .pid = 1, .start_ticks = 1};

#define CASE(name) TEST_WITH(name, setup, teardown)

static int setup(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/neighbour-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    end_fakes();
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return rmdir(folder);
}

static struct neighbour_wish wish(uint64_t bytes)
{
    return (struct neighbour_wish){.folder = folder,
                                   .self = &self,
                                   .uuid = uuid,
                                   .uuid_text = "GPU-30313233",
                                   .bytes = bytes,
                                   .until_ns = clock_now_ns() + WAIT_NS,
                                   .waits = true};
}

static enum neighbour_answer ask(const struct neighbour_wish *w, uint64_t *bytes)
{
    return neighbour_ask(w, WAIT_NS, bytes);
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

CASE(the_neighbour_with_most_idle_memory_is_asked_first)
{
    struct fake *few = add(REPLIES, 64 * MIB), *most = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(600 * MIB);
    uint64_t bytes;
    int descriptors = count_descriptors();
    errno = 77;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(bytes, 512 * MIB);
    assert_int_equal(atomic_load(&few->asked), 0);
    assert_int_equal(atomic_load(&most->asked), 1);
    assert_non_null(strstr(most->ask, "give gpu=GPU-30313233 bytes=629145600 wait="));
    /* It gave less than was asked for: no more comes from it. */
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(bytes, 64 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    assert_int_equal(errno, 77);
    assert_int_equal(count_descriptors(), descriptors);
    /* In the next series it may have some again. */
    w = wish(MIB);
    most->has_bytes = 2 * MIB;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&most->asked), 3);
}

/* The page may be ten seconds old. */
CASE(a_neighbour_whose_page_shows_nothing_idle_is_asked_too)
{
    struct fake *stale = add(REPLIES, 0);
    struct neighbour_wish w = wish(MIB);
    uint64_t bytes;
    stale->has_bytes = 3 * MIB;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(bytes, MIB);
}

/* It gives all before, and is asked for nothing until it is unlocked. */
CASE(a_neighbour_that_is_locked_is_not_asked)
{
    struct fake *locked = add(REPLIES, 512 * MIB), *other = add(REPLIES, 64 * MIB);
    const struct page_id asker = {.pid_namespace = 5, .pid = 1 << 30, .start_ticks = 1};
    int pid = (int)locked->page->pid;
    struct neighbour_wish w = wish(MIB);
    uint64_t bytes, until_ns = clock_now_ns() + WAIT_NS;
    errno = 77;
    assert_int_equal(neighbour_flush(folder, &asker, 1 << 20, until_ns), 0);
    assert_int_equal(neighbour_flush(folder, &asker, pid, until_ns), 512 * MIB);
    assert_non_null(strstr(locked->ask, "flush wait="));
    neighbour_set_locked(pid, true);
    locked->has_bytes = 512 * MIB;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&other->asked), 1);
    neighbour_set_locked(pid, false);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&locked->asked), 2);
    assert_int_equal(errno, 77);
}

/* In another container a process may have the number of the one that is locked. */
CASE(a_neighbour_of_another_namespace_is_not_locked)
{
    struct fake *locked = add(REPLIES, 64 * MIB), *far = add(REPLIES, 512 * MIB);
    const struct page_id asker = {.pid_namespace = 5, .pid = 1 << 30, .start_ticks = 1};
    int pid = (int)locked->page->pid;
    char path[sizeof folder + 64];
    uint64_t bytes;
    far->page->pid_namespace = 6;
    far->page->pid = (uint64_t)pid;
    snprintf(path, sizeof path, "%s/6-%d-9.page", folder, pid);
    assert_int_equal(rename(far->path, path), 0);
    struct neighbour_wish w = wish(MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    neighbour_flush(folder, &asker, pid, clock_now_ns() + WAIT_NS);
    neighbour_set_locked(pid, true);
    w = wish(MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&far->asked), 2);
    neighbour_set_locked(pid, false);
}

CASE(a_neighbour_that_took_memory_again_at_once_comes_last)
{
    struct fake *quick = add(REPLIES, 512 * MIB), *few = add(REPLIES, 64 * MIB);
    uint64_t bytes, now_ns = clock_now_ns(), before = counter_get(COUNTER_LEND_THRASH);
    quick->page->gpus[1].returned_ns = now_ns - 500 * MS_NS;
    quick->page->gpus[1].regrown_ns = now_ns - 450 * MS_NS;
    struct neighbour_wish w = wish(600 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(bytes, 64 * MIB);
    assert_int_equal(counter_get(COUNTER_LEND_THRASH), before);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(bytes, 512 * MIB);
    assert_int_equal(counter_get(COUNTER_LEND_THRASH), before + 1);
    /* Where no program waits it is left alone. */
    quick->has_bytes = few->has_bytes = 64 * MIB;
    w = wish(600 * MIB);
    w.waits = false;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_ASKED);
    assert_int_equal(bytes, 64 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    /* Ten seconds later it is one like others. */
    quick->page->gpus[1].returned_ns = now_ns - 20500 * MS_NS;
    quick->page->gpus[1].regrown_ns = now_ns - 20450 * MS_NS;
    w = wish(600 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&quick->asked), 2);
}

/* A neighbour that gave no reply in time, and is not asked any more. */
static struct fake *add_late(const struct neighbour_wish *w)
{
    struct fake *slow = add(HANGS, 512 * MIB);
    struct neighbour_wish soon = *w;
    uint64_t bytes;
    soon.until_ns = clock_now_ns() + 200 * MS_NS;
    assert_int_equal(ask(&soon, &bytes), NEIGHBOUR_GONE);
    assert_int_equal(ask(w, &bytes), NEIGHBOUR_NONE);
    return slow;
}

/* A slow neighbour is asked again once its reply stands in the page. */
CASE(a_neighbour_that_replied_late_is_not_skipped)
{
    struct neighbour_wish w = wish(64 * MIB);
    struct fake *slow = add_late(&w);
    uint64_t bytes;
    for (int i = 0; i < PAGE_SLOTS; i++) {
        struct page_slot *s = &slow->page->slots[i];
        __atomic_store_n(&s->reply_sequence, s->ask_sequence, __ATOMIC_SEQ_CST);
    }
    slow->manner = REPLIES;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
}

/* The number of the reply that is missing says nothing there. */
CASE(a_neighbour_whose_page_has_a_new_file_is_not_skipped)
{
    char path[160];
    struct neighbour_wish w = wish(64 * MIB);
    struct fake *slow = add_late(&w);
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/new", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(pwrite(fd, slow->page, sizeof *slow->page, 0), sizeof *slow->page);
    close(fd);
    assert_int_equal(rename(path, slow->path), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GONE);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
}

/* Of a process that has ended or is stopped no thread waits at the doorbell. */
CASE(a_neighbour_without_a_waiter_costs_a_moment_once)
{
    struct fake *deaf = add(DEAF, 512 * MIB);
    add(REPLIES, 64 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    uint64_t bytes, start_ns = clock_now_ns(), before = counter_get(COUNTER_LEND_TIMEOUT);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GONE);
    assert_true(clock_now_ns() - start_ns < WAIT_NS / 2);
    assert_int_equal(counter_get(COUNTER_LEND_TIMEOUT), before + 1);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    w = wish(64 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NOTHING);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    /* When it goes on, it finds no request to carry out. */
    for (int i = 0; i < PAGE_SLOTS; i++)
        assert_int_equal(deaf->page->slots[i].ask_bytes, 0);
}

CASE(a_neighbour_that_hangs_costs_its_share_of_the_wait_once)
{
    add(HANGS, 512 * MIB);
    add(REPLIES, 64 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    uint64_t bytes, start_ns = clock_now_ns();
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GONE);
    assert_in_range(clock_now_ns() - start_ns, WAIT_NS / 2, w.until_ns - start_ns + 5000 * MS_NS);
    /* Some of the time is left for the other one. */
    assert_true(clock_now_ns() < w.until_ns);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    w = wish(64 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NOTHING);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
}

CASE(a_page_that_is_truncated_meanwhile_harms_nobody)
{
    struct fake *f = add(TRUNCATES, 512 * MIB);
    struct neighbour_wish w = wish(64 * MIB);
    uint64_t bytes;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GONE);
    assert_int_equal(atomic_load(&f->asked), 1);
}

CASE(what_is_no_page_of_this_user_and_version_is_not_asked)
{
    uint64_t bytes;
    char path[160];
    struct fake *f[9];
    for (int i = 0; i < 9; i++)
        f[i] = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(MIB);
    f[0]->page->version = PAGE_VERSION + 1;
    f[1]->page->magic[0] = 'X';
    f[2]->page->pid = 1234567;
    f[3]->page->uid = geteuid() + 1;
    f[4]->page->num_gpus = 1;
    assert_int_equal(chmod(f[5]->path, 0644), 0);
    snprintf(path, sizeof path, "%s/other", folder);
    assert_int_equal(link(f[6]->path, path), 0);
    assert_int_equal(truncate(f[7]->path, sizeof(struct page) + 1), 0);
    snprintf(path, sizeof path, "%s/moved", folder);
    assert_int_equal(rename(f[8]->path, path), 0);
    assert_int_equal(symlink(path, f[8]->path), 0);
    snprintf(path, sizeof path, "%s/5-99-9.page", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    for (int i = 0; i < 9; i++)
        assert_int_equal(atomic_load(&f[i]->asked), 0);
    f[0]->page->version = PAGE_VERSION;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
}

CASE(a_page_of_another_user_is_not_asked)
{
    struct fake *f = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(MIB);
    uint64_t bytes;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(f->path, 65534, 65534), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    assert_int_equal(chown(f->path, 0, 0), 0);
    assert_int_equal(chown(folder, 65534, 65534), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chmod(folder, 0750), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
}

CASE(the_own_page_and_those_of_ended_processes_are_not_asked)
{
    struct fake *own = add(REPLIES, 512 * MIB), *ended = add(REPLIES, 512 * MIB);
    uint64_t bytes;
    char path[160], name[40];
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    struct neighbour_wish w = wish(MIB);
    struct page_id here = {.pid_namespace = 5, .pid = last_pid - 1, .start_ticks = 9};
    w.self = &here;
    ended->page->pid = (uint64_t)child;
    snprintf(name, sizeof name, "5-%d-9.page", (int)child);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(rename(ended->path, path), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
    /* In another namespace the number says nothing. */
    w.self = &self;
    assert_int_equal(unlink(own->path), 0);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&ended->asked), 1);
}

/* The reply to an asker that gave up may still come there. */
CASE(a_slot_without_its_reply_is_left_alone)
{
    struct fake *f = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(MIB);
    uint64_t bytes;
    for (int i = 0; i < PAGE_SLOTS; i++)
        __atomic_store_n(&f->page->slots[i].ask_sequence, i == 3 ? 0 : 7, __ATOMIC_SEQ_CST);
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(ask(&w, &bytes), NEIGHBOUR_GAVE);
        for (int i = 0; i < PAGE_SLOTS; i++)
            assert_int_equal(f->page->slots[i].ask_sequence, i == 3 ? n : 7);
    }
    __atomic_add_fetch(&f->page->slots[3].ask_sequence, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_BUSY);
}

/* Locks them for this process; how many another one has locked. */
static int lock_slots(const struct fake *f)
{
    int refused = 0, fd = open(f->path, O_RDWR);
    for (int i = 0; i < PAGE_SLOTS; i++) {
        struct flock range = {.l_type = F_WRLCK, .l_start = (off_t)(8192 + 4096 * i), .l_len = 1};
        refused += fcntl(fd, F_SETLK, &range) != 0;
    }
    return refused;
}

/* Eight slots: others have their locks, or a request in each that gets no reply. */
CASE(a_neighbour_whose_slots_stay_taken_counts_as_gone)
{
    struct fake *f = add(REPLIES, 512 * MIB);
    uint64_t bytes;
    int ready[2], done[2];
    assert_int_equal(pipe(ready) + pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        if (lock_slots(f) != 0)
            _exit(1);
        if (write(ready[1], "x", 1) != 1 || read(done[0], ready, 1) != 1)
            _exit(2);
        _exit(0);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    struct neighbour_wish w = wish(MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_BUSY);
    int rounds = 0;
    enum neighbour_answer answer;
    while ((answer = ask(&w, &bytes)) == NEIGHBOUR_BUSY)
        rounds++;
    assert_int_equal(answer, NEIGHBOUR_GONE);
    assert_true(clock_now_ns() < w.until_ns + 5000 * MS_NS);
    assert_int_equal(write(done[1], "x", 1), 1);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&f->asked), 0);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
}

struct long_question {
    struct neighbour_wish w;
    enum neighbour_answer answer;
};

static void *ask_long(void *arg)
{
    struct long_question *q = arg;
    uint64_t bytes;
    q->answer = ask(&q->w, &bytes);
    return NULL;
}

/* How many slots another process finds locked. */
static int locked_slots(const struct fake *f)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(lock_slots(f));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A close of any descriptor of the file ends a process's locks there, but not those of a
 * descriptor. A child may have the descriptor too. */
CASE(a_slot_stays_locked_while_the_own_process_looks_for_stale_pages)
{
    struct fake *f = add(HANGS, 512 * MIB);
    struct long_question q = {.w = wish(64 * MIB)};
    pthread_t thread;
    bool asked = false;
    assert_int_equal(pthread_create(&thread, NULL, ask_long, &q), 0);
    for (int n = 0; !asked && n < 20000; n++, usleep(100))
        for (int i = 0; i < PAGE_SLOTS; i++)
            asked = asked || __atomic_load_n(&f->page->slots[i].ask_sequence, __ATOMIC_SEQ_CST);
    assert_int_equal(locked_slots(f), 1);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep(30);
        _exit(0);
    }
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    page_dir_clean(dir, &self);
    close(dir);
    assert_int_equal(locked_slots(f), 1);
    pthread_join(thread, NULL);
    assert_int_equal(q.answer, NEIGHBOUR_GONE);
    assert_int_equal(locked_slots(f), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

CASE(requests_without_a_wait_go_to_each_idle_neighbour_once)
{
    struct fake *a = add(REPLIES, 64 * MIB), *b = add(REPLIES, 32 * MIB), *none = add(REPLIES, 0);
    struct neighbour_wish w = wish(512 * MIB);
    uint64_t bytes, start_ns = clock_now_ns();
    w.waits = false;
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_ASKED);
    assert_int_equal(bytes, 64 * MIB);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_ASKED);
    assert_int_equal(ask(&w, &bytes), NEIGHBOUR_NONE);
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
    uint64_t bytes;
    w.until_ns += 20000 * MS_NS;
    enum neighbour_answer answer;
    while ((answer = ask(&w, &bytes)) == NEIGHBOUR_BUSY)
        ;
    atomic_fetch_add(a->gave, answer == NEIGHBOUR_GAVE && bytes == MIB);
    return NULL;
}

CASE(twenty_threads_ask_one_after_the_other)
{
    struct asker askers[20];
    atomic_int gave = 0;
    add(REPLIES, 20 * MIB);
    for (int i = 0; i < 20; i++) {
        askers[i].gave = &gave;
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_once, &askers[i]), 0);
    }
    for (int i = 0; i < 20; i++)
        pthread_join(askers[i].thread, NULL);
    assert_int_equal(atomic_load(&gave), 20);
}

PLAY_TESTS
