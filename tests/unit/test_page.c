/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The page of a process: its file and its directory, what readers see, requests, and what happens
 * where others spoil it. A process has one page, so each case runs in a process of its own.
 */
#include "shim/stats/page.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <dirent.h>

#include <cmocka.h>

enum { SKIP = 77, NOBODY = 65534 };

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static char root[64]; /* of the case */
static char dir[80];  /* of the pages: root/pages, not made yet */

/* Plays a case in a child, which ends with 0, or SKIP. */
static void play(void (*body)(void))
{
    int status;

    strcpy(root, "/tmp/page-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(dir, sizeof(dir), "%s/pages", root);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    assert_int_equal(system(command), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP)
        skip();
    assert_int_equal(status, 0);
}

#define CASE(name)                                                                                 \
    static void play_##name(void);                                                                 \
    static void name(void **state)                                                                 \
    {                                                                                              \
        play(play_##name);                                                                         \
    }                                                                                              \
    static void play_##name(void)

static struct page_gpu one_gpu = {.uuid = "0123456789abcde", .idle_bytes = 7};

static struct page_state state_of(const char *body)
{
    return (struct page_state){
        .body = body, .body_bytes = strlen(body), .gpus = &one_gpu, .num_gpus = 1};
}

static bool make(const char *path, const char **why)
{
    struct page_state s = state_of("{}");

    return page_make(path, &s, why);
}

/* The page as another process maps it. */
static struct page *map_page(void)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", page_folder(), page_name());
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0);
    struct page *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(p != MAP_FAILED);
    close(fd);
    return p;
}

static unsigned entries_of(const char *path)
{
    unsigned count = 0;
    DIR *entries = opendir(path);

    while (entries && readdir(entries))
        count++;
    if (entries)
        closedir(entries);
    return count > 2 ? count - 2 : 0;
}

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

CASE(others_see_what_was_published_and_no_descriptor_stays)
{
    const char *why;
    struct stat st;
    unsigned descriptors = entries_of("/proc/self/fd");

    REQUIRE(make(dir, &why));
    REQUIRE(entries_of("/proc/self/fd") == descriptors);
    REQUIRE(entries_of(dir) == 1);
    REQUIRE(!stat(dir, &st) && (st.st_mode & 07777) == 0700);
    struct page *p = map_page();
    struct page_id id;
    REQUIRE(page_id_parse(page_name(), &id) && id.pid == (uint64_t)getpid());
    REQUIRE(!memcmp(p->magic, PAGE_MAGIC, 8) && p->version == PAGE_VERSION);
    REQUIRE(p->size_bytes == sizeof(*p) && p->uid == geteuid());
    REQUIRE(p->pid == id.pid && p->start_ticks == id.start_ticks && id.start_ticks);
    REQUIRE(p->pid_namespace == id.pid_namespace && p->started_unix_ns);
    REQUIRE(!strcmp(p->library_version, GPUCACHE_VERSION));
    REQUIRE(p->sequence == 2 && p->body_bytes == 2 && !memcmp(p->body, "{}", 2));
    REQUIRE(p->num_gpus == 1 && p->gpus[0].idle_bytes == 7);
    struct page_state s = state_of("{\"a\":1}");
    one_gpu.idle_bytes = 9;
    REQUIRE(page_publish(&s));
    REQUIRE(p->sequence == 4 && p->body_bytes == 7 && !memcmp(p->body, s.body, 7));
    REQUIRE(p->gpus[0].idle_bytes == 9 && p->published_ns <= clock_ns() && p->published_unix_ns);
    p->watched_until_ns = 4711;
    REQUIRE(page_watched_until_ns() == 4711);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, page_name());
    REQUIRE(!stat(path, &st) && (st.st_mode & 07777) == 0600);
    errno = EDOM;
    page_remove();
    REQUIRE(errno == EDOM && entries_of(dir) == 0);
}

CASE(a_second_page_is_not_made_nor_one_after_the_end)
{
    const char *why;

    REQUIRE(make(dir, &why) && !make(dir, &why) && !why && entries_of(dir) == 1);
    page_remove();
    REQUIRE(!make(dir, &why) && !why && entries_of(dir) == 0);
}

CASE(too_much_is_refused_and_the_state_before_stays)
{
    static struct page_gpu gpus[PAGE_GPUS_MAX + 1];
    static char body[PAGE_BODY_BYTES + 1];
    const char *why;

    REQUIRE(make(dir, &why));
    struct page *p = map_page();
    REQUIRE(!page_publish(&(struct page_state){.body = body, .body_bytes = sizeof(body)}));
    REQUIRE(!page_publish(&(struct page_state){.gpus = gpus, .num_gpus = PAGE_GPUS_MAX + 1}));
    REQUIRE(p->sequence == 2);
    memset(body, 'x', sizeof(body));
    REQUIRE(page_publish(&(struct page_state){
        .body = body, .body_bytes = PAGE_BODY_BYTES, .gpus = gpus, .num_gpus = PAGE_GPUS_MAX}));
    REQUIRE(p->sequence == 4 && p->body[PAGE_BODY_BYTES - 1] == 'x');
    REQUIRE(p->slots[PAGE_SLOTS - 1].reply_sequence == 0);
}

static void refuses(const char *path, const char *words)
{
    const char *why;
    unsigned before = entries_of(path);

    REQUIRE(!make(path, &why));
    REQUIRE(why && strstr(why, words));
    REQUIRE(entries_of(path) == before);
    REQUIRE(!*page_folder() && !*page_name());
}

CASE(a_directory_that_does_not_serve_is_refused_with_the_reason)
{
    char path[96];

    REQUIRE(!mkdir(dir, 0700));
    snprintf(path, sizeof(path), "%s/link", root);
    REQUIRE(!symlink(dir, path));
    refuses(path, "symbolic link");
    snprintf(path, sizeof(path), "%s/file", root);
    close(open(path, O_CREAT | O_WRONLY, 0700));
    refuses(path, "no directory");
    snprintf(path, sizeof(path), "%s/missing/pages", root);
    refuses(path, "cannot be made");
    for (unsigned mode = 1; mode < 0100; mode <<= 1) {
        REQUIRE(!chmod(dir, 0700 | mode));
        refuses(dir, "others may use it");
    }
    REQUIRE(!chmod(dir, 0700));
    const char *why;
    REQUIRE(make(dir, &why));
}

CASE(a_directory_of_another_user_is_refused)
{
    if (geteuid())
        _exit(SKIP);
    REQUIRE(!mkdir(dir, 0700) && !chown(dir, NOBODY, NOBODY));
    refuses(dir, "another user");
    REQUIRE(!chown(dir, 0, 0) && !chmod(root, 0755) && !setresuid(NOBODY, NOBODY, NOBODY));
    refuses(dir, "cannot be opened");
}

CASE(a_full_or_read_only_file_system_leaves_nothing_behind)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mkdir(dir, 0700) || mount("none", dir, "tmpfs", 0, "size=65536,mode=0700"))
        _exit(SKIP);
    refuses(dir, "no room");
    REQUIRE(errno == ENOSPC);
    REQUIRE(!mount("none", dir, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=65536"));
    refuses(dir, "no file can be made");
    REQUIRE(!mount("none", dir, "tmpfs", MS_REMOUNT, "size=1m"));
    const char *why;
    REQUIRE(make(dir, &why));
}

CASE(a_file_that_is_cut_off_ends_the_page_and_nothing_else)
{
    const char *why;
    char path[PATH_MAX];
    static struct page_request request;
    struct page_state s = state_of("{}");

    REQUIRE(make(dir, &why));
    snprintf(path, sizeof(path), "%s/%s", dir, page_name());
    REQUIRE(!truncate(path, 0));
    REQUIRE(!page_publish(&s) && !page_watched_until_ns() && !page_read_request(0, &request));
    page_answer_request(&request, &(struct page_answer){.text = "{}", .text_bytes = 2});
    REQUIRE(!page_start_bell(abort) || !usleep(100000));
    page_remove();
    REQUIRE(entries_of(dir) == 0);
}

CASE(a_forked_child_has_no_page_and_removes_none)
{
    const char *why;
    struct page_state s = state_of("{\"child\":1}");
    int status;

    REQUIRE(make(dir, &why));
    struct page *p = map_page();
    pid_t child = fork();
    if (child == 0) {
        static struct page_request request;
        REQUIRE(!page_publish(&s) && !page_watched_until_ns() && !page_read_request(0, &request));
        page_remove();
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(p->sequence == 2 && entries_of(dir) == 1);
    REQUIRE(page_publish(&s) && p->sequence == 4);
}

static void touch(const char *name, uint64_t published_unix_ns)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0 && !ftruncate(fd, sizeof(struct page)));
    REQUIRE(pwrite(fd, &published_unix_ns, 8, offsetof(struct page, published_unix_ns)) == 8);
    close(fd);
}

static bool is_there(const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return !access(path, F_OK);
}

static void *wait_at_bell(void *bell)
{
    for (;;)
        syscall(SYS_futex, bell, FUTEX_WAIT, 0, NULL, NULL, 0);
    return NULL;
}

CASE(stale_pages_are_removed_and_no_others)
{
    char here[PAGE_NAME_MAX], gone[PAGE_NAME_MAX], reused[PAGE_NAME_MAX], waits[PAGE_NAME_MAX];
    char unfinished[PAGE_NAME_MAX + 8], path[PATH_MAX];
    struct page_id self, id;
    uint64_t now_ns = (uint64_t)time(NULL) * 1000000000u, day_ns = UINT64_C(86400) * 1000000000u;
    pthread_t thread;
    const char *why;

    REQUIRE(page_id_self(&self) && !mkdir(dir, 0700));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    REQUIRE(waitpid(child, NULL, 0) == child);
    id = (struct page_id){self.pid_namespace, (uint64_t)child, 1};
    page_id_name(&id, gone);
    snprintf(unfinished, sizeof(unfinished), "%s" PAGE_UNFINISHED, gone);
    id.start_ticks = 2;
    page_id_name(&id, waits);
    id = (struct page_id){self.pid_namespace, (uint64_t)getppid(), 1};
    page_id_name(&id, reused);
    id = self;
    id.pid = 1;
    page_id_name(&id, here); /* process 1 did not start when this one did */
    touch(gone, now_ns);
    touch(unfinished, now_ns);
    touch(reused, now_ns);
    touch(here, now_ns);
    touch(waits, 0);
    touch("1-2-3.page", now_ns - day_ns + 60 * UINT64_C(1000000000));
    touch("1-2-4.page", now_ns - day_ns - UINT64_C(1000000000));
    touch("1-2-5.pages", 0);
    touch("1-2.page", 0);
    snprintf(path, sizeof(path), "%s/%s", dir, waits);
    int fd = open(path, O_RDWR);
    char *at = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(fd >= 0 && at != MAP_FAILED);
    REQUIRE(!pthread_create(&thread, NULL, wait_at_bell, at + offsetof(struct page, bell)));
    usleep(100000);
    REQUIRE(make(dir, &why));
    REQUIRE(!is_there(gone) && !is_there(unfinished) && !is_there(reused) && !is_there(here));
    REQUIRE(is_there(waits) && is_there("1-2-3.page") && !is_there("1-2-4.page"));
    REQUIRE(is_there("1-2-5.pages") && is_there("1-2.page") && is_there(page_name()));
}

CASE(so_many_stale_pages_at_a_time_and_no_more)
{
    char name[PAGE_NAME_MAX];
    const char *why;

    REQUIRE(!mkdir(dir, 0700));
    for (unsigned i = 0; i < PAGE_CLEAN_MAX + 6; i++) {
        snprintf(name, sizeof(name), "1-%u-3.page", i);
        touch(name, 0);
    }
    REQUIRE(make(dir, &why) && entries_of(dir) == 7);
}

CASE(names_of_pages_are_read_strictly)
{
    static const char *const bad[] = {"",
                                      ".page",
                                      "1-2.page",
                                      "1-2-3",
                                      "1-2-3.page ",
                                      "-1-2-3.page",
                                      "1--2-3.page",
                                      "1-2-18446744073709551616.page",
                                      "a-2-3.page",
                                      "1-2-3.page.old",
                                      " 1-2-3.page",
                                      "0x1-2-3.page"};
    struct page_id id;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REQUIRE(!page_id_parse(bad[i], &id));
    REQUIRE(page_id_parse("4026531836-17-18446744073709551615.page", &id));
    REQUIRE(id.pid_namespace == 4026531836 && id.pid == 17 && id.start_ticks == UINT64_MAX);
}

/* A state of which each byte says which one it is. */
static void fill(char *body, size_t size_bytes, struct page_gpu *gpus, unsigned number)
{
    memset(body, 'a' + (int)(number % 26), size_bytes);
    for (unsigned i = 0; i < PAGE_GPUS_MAX; i++)
        gpus[i] = (struct page_gpu){.idle_bytes = number, .reserved_bytes = number};
}

static atomic_bool over;

/* Reads as page_format.h says, and looks whether what it read belongs together. */
static void *read_on(void *arg)
{
    struct page *p = arg;
    unsigned long whole = 0;

    while (!atomic_load(&over)) {
        uint64_t before = __atomic_load_n(&p->sequence, __ATOMIC_ACQUIRE);
        static _Thread_local char body[PAGE_BODY_BYTES];
        struct page_gpu gpus[PAGE_GPUS_MAX];
        uint32_t size = __atomic_load_n(&p->body_bytes, __ATOMIC_RELAXED);
        if (before % 2 || size > sizeof(body))
            continue;
        memcpy(gpus, p->gpus, sizeof(gpus));
        memcpy(body, p->body, size);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&p->sequence, __ATOMIC_RELAXED) != before)
            continue;
        for (unsigned i = 0; i < PAGE_GPUS_MAX; i++)
            REQUIRE(gpus[i].idle_bytes == gpus[0].idle_bytes);
        for (uint32_t i = 0; i < size; i++)
            REQUIRE(body[i] == 'a' + (int)(gpus[0].idle_bytes % 26));
        REQUIRE(size == 1000 + gpus[0].idle_bytes % 50000);
        whole++;
    }
    return (void *)whole;
}

CASE(ten_readers_never_take_two_states_for_one)
{
    enum { READERS = 10 };
    static char body[PAGE_BODY_BYTES];
    static struct page_gpu gpus[PAGE_GPUS_MAX];
    pthread_t readers[READERS];
    unsigned number = 1;
    unsigned long whole = 0;
    const char *why;

    fill(body, 1001, gpus, number);
    struct page_state s = {.body = body, .body_bytes = 1001, .gpus = gpus, .num_gpus = 32};
    REQUIRE(page_make(dir, &s, &why));
    struct page *p = map_page();
    for (int i = 0; i < READERS; i++)
        REQUIRE(!pthread_create(&readers[i], NULL, read_on, p));
    for (uint64_t end_ns = clock_ns() + UINT64_C(500000000); clock_ns() < end_ns;) {
        number++;
        s.body_bytes = 1000 + number % 50000;
        fill(body, s.body_bytes, gpus, number);
        REQUIRE(page_publish(&s));
        if (number % 16 == 0)
            usleep(1000);
    }
    usleep(10000);
    atomic_store(&over, true);
    for (int i = 0; i < READERS; i++) {
        void *n;
        pthread_join(readers[i], &n);
        whole += (unsigned long)n;
    }
    REQUIRE(number > 100 && whole > 100);
}

static atomic_uint rings;

static void ring(void)
{
    atomic_fetch_add(&rings, 1);
}

/* As the control thread: serves requests until all is over. Replies the request's own text. */
static void *serve(void *unused)
{
    static struct page_request r;
    static unsigned long served;

    for (unsigned seen = 0; !atomic_load(&over);) {
        unsigned now = atomic_load(&rings);
        if (now == seen) {
            usleep(100);
            continue;
        }
        seen = now;
        for (unsigned slot = 0; slot < PAGE_SLOTS; slot++)
            if (page_read_request(slot, &r)) {
                REQUIRE(r.slot == slot && r.ask_bytes <= PAGE_ASK_BYTES && !r.ask[r.ask_bytes]);
                page_answer_request(&r, &(struct page_answer){.code = PAGE_REPLY_PARTLY,
                                                              .value = r.sequence,
                                                              .text = r.ask,
                                                              .text_bytes = r.ask_bytes});
                served++;
            }
    }
    return (void *)served;
}

struct asker {
    struct page *p;
    unsigned slot;
};

/* Asks as page_format.h says, and waits for each reply. */
static void *ask_on(void *arg)
{
    const struct asker *a = arg;
    struct page_slot *s = &a->p->slots[a->slot];

    for (uint32_t i = 1; i <= 50; i++) {
        s->ask_bytes = (uint32_t)snprintf(s->ask, sizeof(s->ask), "%u of %u", i, a->slot);
        __atomic_store_n(&s->ask_sequence, i, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&a->p->bell, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &a->p->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
        for (uint32_t now; (now = __atomic_load_n(&s->reply_sequence, __ATOMIC_SEQ_CST)) != i;)
            syscall(SYS_futex, &s->reply_sequence, FUTEX_WAIT, now, NULL, NULL, 0);
        REQUIRE(s->reply_bytes == s->ask_bytes && !memcmp(s->reply, s->ask, s->ask_bytes));
        REQUIRE(s->reply_code == PAGE_REPLY_PARTLY && s->reply_value == i);
    }
    return NULL;
}

CASE(each_request_gets_its_reply)
{
    pthread_t server, askers[PAGE_SLOTS];
    struct asker each[PAGE_SLOTS];
    const char *why;

    alarm(50);
    REQUIRE(make(dir, &why) && page_start_bell(ring));
    struct page *p = map_page();
    REQUIRE(!pthread_create(&server, NULL, serve, NULL));
    for (unsigned i = 0; i < PAGE_SLOTS; i++) {
        each[i] = (struct asker){p, i};
        REQUIRE(!pthread_create(&askers[i], NULL, ask_on, &each[i]));
    }
    for (unsigned i = 0; i < PAGE_SLOTS; i++)
        pthread_join(askers[i], NULL);
    atomic_store(&over, true);
    void *served;
    pthread_join(server, &served);
    REQUIRE((unsigned long)served == 50 * PAGE_SLOTS);
}

/* Another process that writes noise over the whole page, rings, and cuts the file now and then. */
static void scribble(struct page *p, uint64_t end_ns)
{
    uint64_t seed = (uint64_t)getpid();
    uint64_t *words = (uint64_t *)(void *)p;

    while (clock_ns() < end_ns) {
        for (size_t i = 0; i < 512; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            words[(seed >> 20) % (sizeof(*p) / 8)] = seed;
        }
        p->bell++;
        syscall(SYS_futex, &p->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        for (unsigned i = 0; i < PAGE_SLOTS; i++)
            p->slots[i].ask_sequence++;
    }
}

CASE(a_writer_of_noise_gets_one_pass_a_millisecond_and_harms_nothing)
{
    pthread_t server;
    struct page_state s = state_of("{}");
    const char *why;

    alarm(50);
    REQUIRE(make(dir, &why) && page_start_bell(ring));
    struct page *p = map_page();
    REQUIRE(!pthread_create(&server, NULL, serve, NULL));
    uint64_t start_ns = clock_ns(), end_ns = start_ns + UINT64_C(1000000000);
    pid_t child = fork();
    if (child == 0) {
        scribble(p, end_ns);
        _exit(0);
    }
    unsigned publications = 0;
    while (clock_ns() < end_ns) {
        REQUIRE(page_publish(&s));
        page_watched_until_ns();
        publications++;
        usleep(1000);
    }
    uint64_t took_ms = (clock_ns() - start_ns) / 1000000;
    unsigned all = atomic_load(&rings);
    REQUIRE(all <= took_ms + 2 && all >= 2 && publications > 2);
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    /* The page is as it should be after the next state. */
    REQUIRE(page_publish(&s));
    REQUIRE(p->sequence == 2 * (publications + 2) && !memcmp(p->body, "{}", 2));
    atomic_store(&over, true);
    pthread_join(server, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_see_what_was_published_and_no_descriptor_stays),
        cmocka_unit_test(a_second_page_is_not_made_nor_one_after_the_end),
        cmocka_unit_test(too_much_is_refused_and_the_state_before_stays),
        cmocka_unit_test(a_directory_that_does_not_serve_is_refused_with_the_reason),
        cmocka_unit_test(a_directory_of_another_user_is_refused),
        cmocka_unit_test(a_full_or_read_only_file_system_leaves_nothing_behind),
        cmocka_unit_test(a_file_that_is_cut_off_ends_the_page_and_nothing_else),
        cmocka_unit_test(a_forked_child_has_no_page_and_removes_none),
        cmocka_unit_test(stale_pages_are_removed_and_no_others),
        cmocka_unit_test(so_many_stale_pages_at_a_time_and_no_more),
        cmocka_unit_test(names_of_pages_are_read_strictly),
        cmocka_unit_test(ten_readers_never_take_two_states_for_one),
        cmocka_unit_test(each_request_gets_its_reply),
        cmocka_unit_test(a_writer_of_noise_gets_one_pass_a_millisecond_and_harms_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
