/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/share/neighbour_page.c, through neighbour.c: what is the page of a neighbour, and how its
 * slots are taken. */
#include "tests/unit/neighbour_rig.h"

#include <sys/prctl.h>

CASE(what_is_no_page_of_this_user_and_version_is_not_asked)
{
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
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    for (int i = 0; i < 9; i++)
        assert_int_equal(atomic_load(&f[i]->asked), 0);
    f[0]->page->version = PAGE_VERSION;
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
}

CASE(a_page_of_another_user_is_not_asked)
{
    struct fake *f = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(MIB);
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(f->path, 65534, 65534), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    assert_int_equal(chown(f->path, 0, 0), 0);
    assert_int_equal(chown(folder, 65534, 65534), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chmod(folder, 0750), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
}

CASE(the_own_page_and_those_of_ended_processes_are_not_asked)
{
    struct fake *own = add(REPLIES, 512 * MIB), *ended = add(REPLIES, 512 * MIB);
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
    assert_int_equal(ask(&w), NEIGHBOUR_NONE);
    /* In another namespace the number says nothing. */
    w.self = &self;
    assert_int_equal(unlink(own->path), 0);
    assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
    assert_int_equal(atomic_load(&ended->asked), 1);
}

/* The reply to an asker that gave up may still come there. */
CASE(a_slot_without_its_reply_is_left_alone)
{
    struct fake *f = add(REPLIES, 512 * MIB);
    struct neighbour_wish w = wish(MIB);
    for (int i = 0; i < PAGE_SLOTS; i++)
        __atomic_store_n(&f->page->slots[i].ask_sequence, i == 3 ? 0 : 7, __ATOMIC_SEQ_CST);
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(ask(&w), NEIGHBOUR_GAVE);
        for (int i = 0; i < PAGE_SLOTS; i++)
            assert_int_equal(f->page->slots[i].ask_sequence, i == 3 ? n : 7);
    }
    __atomic_add_fetch(&f->page->slots[3].ask_sequence, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(ask(&w), NEIGHBOUR_BUSY);
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
    assert_int_equal(ask(&w), NEIGHBOUR_BUSY);
    enum neighbour_answer answer;
    while ((answer = ask(&w)) == NEIGHBOUR_BUSY)
        ;
    assert_int_equal(answer, NEIGHBOUR_GONE);
    assert_true(clock_now_ns() < w.until_ns + 5000 * MS_NS);
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(child_status(child), 0);
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
    q->answer = ask(&q->w);
    return NULL;
}

/* How many slots another process finds locked. */
static int locked_slots(const struct fake *f)
{
    pid_t child = fork();
    if (child == 0)
        _exit(lock_slots(f));
    int status = child_status(child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A close of any descriptor of the file ends a process's locks there, but not those of a
 * descriptor. A child may have the descriptor too. */
CASE(a_slot_stays_locked_while_the_own_process_looks_for_stale_pages)
{
    struct fake *f = add(HANGS, 512 * MIB);
    struct long_question q = {.w = wish(64 * MIB)};
    bool asked = false;
    pthread_t thread = started(ask_long, &q);
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

PLAY_TESTS
