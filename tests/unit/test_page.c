/* SPDX-License-Identifier: BSD-2-Clause */
/* The page of a process: its file, what readers see, and what happens where others spoil it.
 * Requests: test_page_slot.c. */
#include "tests/unit/page_case.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

CASE(others_see_what_was_published_and_no_descriptor_stays)
{
    struct stat st;
    unsigned descriptors = entries_of("/proc/self/fd");
    REQUIRE(make(dir));
    REQUIRE(entries_of("/proc/self/fd") == descriptors);
    REQUIRE(entries_of(dir) == 1);
    REQUIRE(!stat(dir, &st) && (st.st_mode & 07777) == 0700);
    struct page *p = map_page();
    struct page_id id;
    REQUIRE(page_id_parse(own_name(), &id) && id.pid == (uint64_t)getpid());
    REQUIRE(!memcmp(p->magic, PAGE_MAGIC, 8) && p->version == PAGE_VERSION);
    REQUIRE(p->size_bytes == sizeof *p && p->uid == geteuid());
    REQUIRE(p->pid == id.pid && p->start_ticks == id.start_ticks && id.start_ticks);
    REQUIRE(p->pid_namespace == id.pid_namespace && p->started_unix_ns);
    unsigned char boot[PAGE_BOOT_BYTES];
    REQUIRE(page_boot_id(boot) && !memcmp(p->boot_id, boot, sizeof boot));
    REQUIRE(!strcmp(p->library_version, GPUCACHE_VERSION));
    REQUIRE(p->sequence == 2 && p->body_bytes == 2 && !memcmp(p->body, "{}", 2));
    REQUIRE(p->num_gpus == 1 && p->gpus[0].idle_bytes == 7);
    struct page_state s = state_of("{\"a\":1}");
    one_gpu.idle_bytes = 9;
    REQUIRE(page_publish(&s));
    REQUIRE(p->sequence == 4 && p->body_bytes == 7 && !memcmp(p->body, s.body, 7));
    REQUIRE(p->gpus[0].idle_bytes == 9 && p->published_ns <= clock_now_ns() &&
            p->published_unix_ns);
    p->watched_until_ns = 4711;
    REQUIRE(page_watched_until_ns() == 4711);
    REQUIRE(!stat(path_of(own_name()), &st) && (st.st_mode & 07777) == 0600);
    errno = EDOM;
    page_remove();
    REQUIRE(errno == EDOM && entries_of(dir) == 0);
}

CASE(a_second_page_is_not_made_nor_one_after_the_end)
{
    REQUIRE(make(dir) && !make(dir) && !why && entries_of(dir) == 1);
    page_remove();
    REQUIRE(!make(dir) && !why && entries_of(dir) == 0);
}

CASE(too_much_is_refused_and_the_state_before_stays)
{
    static struct page_gpu gpus[PAGE_GPUS_MAX + 1];
    static char body[PAGE_BODY_BYTES + 1];
    REQUIRE(make(dir));
    struct page *p = map_page();
    REQUIRE(!page_publish(&(struct page_state){.body = body, .body_bytes = sizeof body}));
    REQUIRE(!page_publish(&(struct page_state){.gpus = gpus, .num_gpus = PAGE_GPUS_MAX + 1}));
    REQUIRE(p->sequence == 2);
    memset(body, 'x', sizeof body);
    REQUIRE(page_publish(&(struct page_state){
        .body = body, .body_bytes = PAGE_BODY_BYTES, .gpus = gpus, .num_gpus = PAGE_GPUS_MAX}));
    REQUIRE(p->sequence == 4 && p->body[PAGE_BODY_BYTES - 1] == 'x');
    REQUIRE(p->slots[PAGE_SLOTS - 1].reply_sequence == 0);
}

CASE(a_file_that_is_cut_off_ends_the_page_and_nothing_else)
{
    static struct page_request request;
    struct page_state s = state_of("{}");
    REQUIRE(make(dir));
    REQUIRE(!truncate(path_of(own_name()), 0));
    REQUIRE(!page_publish(&s) && !page_watched_until_ns() && !page_read_request(0, &request));
    page_answer_request(&request, &(struct page_answer){.text = "{}", .text_bytes = 2});
    REQUIRE(!page_start_doorbell(abort) || !usleep(100000));
    page_remove();
    REQUIRE(entries_of(dir) == 0);
}

CASE(a_state_that_could_not_be_written_whole_is_not_taken_for_one)
{
    struct page_state s = state_of("{}");
    REQUIRE(make(dir));
    struct page *p = map_page();
    REQUIRE(!truncate(path_of(own_name()), offsetof(struct page, body)));
    REQUIRE(!page_publish(&s) && p->sequence == 3);
}

CASE(a_forked_child_has_no_page_and_removes_none)
{
    struct page_state s = state_of("{\"child\":1}");
    int status;
    REQUIRE(make(dir));
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

/* From here on these two calls fail with EPERM, as in some sandboxes. */
static bool forbid_copies(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* The kernel finds no memory under the number of a process whose first thread has ended. */
static void *live_on_without_first(void *arg)
{
    struct page_state s = state_of("{\"a\":1}");
    REQUIRE(await_task_state(getpid(), getpid(), 'Z'));
    REQUIRE(arg || make(dir));
    REQUIRE(page_publish(&s));
    struct page *p = map_page();
    REQUIRE(p->sequence % 2 == 0 && p->body_bytes == 7 && !memcmp(p->body, s.body, 7));
    p->watched_until_ns = 4711;
    REQUIRE(page_watched_until_ns() == 4711);
    _exit(0);
}

static void live_on(void *page_before)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, live_on_without_first, page_before));
    pthread_exit(NULL);
}

CASE(a_page_outlives_the_first_thread)
{
    REQUIRE(make(dir));
    live_on(dir);
}

CASE(a_file_that_somebody_removed_comes_back_with_its_directory)
{
    struct page_state s = state_of("{\"a\":1}");
    REQUIRE(make(dir) && !page_is_lost() && page_start_doorbell(hear));
    wait_for_rings(1);
    struct page *old = map_page();
    wait_for_listener(old);
    unsigned descriptors = entries_of("/proc/self/fd");
    REQUIRE(!unlink(path_of(own_name())) && !rmdir(dir) && page_is_lost() && page_renew(&s));
    REQUIRE(!page_is_lost() && entries_of("/proc/self/fd") == descriptors);
    unsigned threads = entries_of("/proc/self/task");
    REQUIRE(page_renew_doorbell() && entries_of("/proc/self/task") == threads);
    wait_for_rings(2);
    struct page *p = map_page();
    REQUIRE(p != old && p->body_bytes == 7 && !memcmp(p->body, s.body, 7) && !(p->sequence % 2));
    wait_for_listener(p);
    raise_doorbell(p);
    wait_for_rings(3);
    static struct page_request r;
    while (page_read_request(0, &r))
        page_answer_request(&r, &(struct page_answer){.text = "{}", .text_bytes = 2});
    p->slots[0].ask_sequence = 1;
    REQUIRE(page_read_request(0, &r) && r.sequence == 1);
    uint64_t sequence = p->sequence;
    REQUIRE(page_publish(&s) && p->sequence == sequence + 2);
    page_remove();
    REQUIRE(entries_of(dir) == 0 && !page_is_lost() && !page_renew(&s));
    REQUIRE(entries_of(dir) == 0);
}

/* Another program of the process may have a page of its own there. */
CASE(another_file_under_the_name_of_the_page_stays_at_the_end)
{
    char other[PATH_MAX];
    REQUIRE(make(dir));
    snprintf(other, sizeof other, "%s/other", dir);
    int fd = open(other, O_CREAT | O_WRONLY, 0600);
    REQUIRE(fd >= 0 && !close(fd) && !rename(other, path_of(own_name())));
    page_remove();
    REQUIRE(entries_of(dir) == 1 && !access(path_of(own_name()), F_OK));
}

/* Nobody can wake the doorbell's thread there. */
CASE(a_file_that_was_cut_off_comes_back_and_its_bell_is_heard)
{
    static struct page_request old, r;
    const struct page_answer answer = {.text = "{}", .text_bytes = 2};
    struct page_state s = state_of("{\"a\":1}");
    REQUIRE(make(dir) && page_start_doorbell(hear));
    wait_for_rings(1);
    struct page *p = map_page();
    wait_for_listener(p);
    p->slots[0].ask_sequence = 1;
    REQUIRE(page_read_request(0, &r));
    page_answer_request(&r, &answer);
    REQUIRE(p->slots[0].reply_sequence == 1 && !page_read_request(0, &r));
    p->slots[1].ask_sequence = 7;
    REQUIRE(page_read_request(1, &old) && old.sequence == 7);
    REQUIRE(!truncate(path_of(own_name()), sizeof *p - 1) && page_is_lost());
    REQUIRE(!truncate(path_of(own_name()), 0) && page_is_lost() && page_renew(&s) &&
            !page_is_lost());
    unsigned threads = entries_of("/proc/self/task");
    REQUIRE(entries_of(dir) == 1 && page_renew_doorbell() && page_renew_doorbell());
    REQUIRE(entries_of("/proc/self/task") == threads + 1);
    p = map_page();
    p->slots[0].ask_sequence = 1;
    page_answer_request(&old, &answer);
    REQUIRE(!p->slots[1].reply_sequence && !page_read_request(1, &r));
    wait_for_rings(2);
    REQUIRE(page_read_request(0, &r) && r.sequence == 1);
    page_remove();
    REQUIRE(entries_of(dir) == 0);
}

CASE(a_file_comes_back_in_no_other_root_directory)
{
    if (geteuid())
        _exit(SKIP);
    REQUIRE(make(dir) && !chroot(dir) && !chdir("/"));
    REQUIRE(!page_is_lost());
}

static void *read_folder(void *arg)
{
    char path[PATH_MAX];
    struct stat st;
    while (!*page_folder())
        ;
    snprintf(path, sizeof path, "%s/%s", page_folder(), own_name());
    REQUIRE(!stat(path, &st));
    return NULL;
}

CASE(threads_read_the_folder_while_the_page_is_made)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, read_folder, NULL));
    usleep(1000);
    REQUIRE(make(dir));
    pthread_join(thread, NULL);
}

CASE(a_page_is_made_after_the_first_thread_ended)
{
    live_on(NULL);
}

CASE(a_sandbox_that_forbids_the_copies_leaves_no_page_and_no_folder)
{
    if (!forbid_copies())
        _exit(SKIP);
    REQUIRE(!make(dir) && errno == EPERM && strstr(why, "process_vm_writev"));
    REQUIRE(access(dir, F_OK) && !*page_folder());
    page_remove();
}

CASE(a_sandbox_that_comes_later_ends_the_page_and_nothing_else)
{
    struct page_state s = state_of("{}");
    REQUIRE(make(dir));
    struct page *p = map_page();
    if (!forbid_copies())
        _exit(SKIP);
    REQUIRE(!page_publish(&s) && !page_watched_until_ns() && p->sequence == 2);
    page_remove();
    REQUIRE(entries_of(dir) == 0);
}

static void *make_it(void *unused)
{
    make(dir);
    return NULL;
}

CASE(an_exit_while_the_page_is_made_leaves_no_file)
{
    alarm(30);
    for (unsigned i = 0; i < 60; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            REQUIRE(!pthread_create(&thread, NULL, make_it, NULL));
            usleep(i * 5);
            page_remove();
            pthread_join(thread, NULL);
            _exit(entries_of(dir) != 0);
        }
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* Each page gets its name by this call. The test is linked with --wrap. */
static void (*before_name)(void), (*behind_name)(void);

int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (before_name)
        before_name();
    int failed = __real_renameat(from_dir, from, to_dir, to);
    if (behind_name)
        behind_name();
    return failed;
}

/* The exit does not wait for ever. */
CASE(an_exit_before_the_page_has_its_name_leaves_no_file)
{
    before_name = page_remove;
    make(dir);
    REQUIRE(entries_of(dir) == 0);
}

CASE(an_exit_when_the_page_has_its_name_leaves_no_file)
{
    behind_name = page_remove;
    make(dir);
    REQUIRE(entries_of(dir) == 0);
}

/* A state of which each byte says which one it is. */
static void fill(char *body, size_t size_bytes, struct page_gpu *gpus, unsigned number)
{
    memset(body, 'a' + (int)(number % 26), size_bytes);
    for (unsigned i = 0; i < PAGE_GPUS_MAX; i++)
        gpus[i] = (struct page_gpu){.idle_bytes = number, .reserved_bytes = number};
}

static atomic_bool over;
static atomic_ulong whole; /* states that were read */

/* Reads as page/layout.h says, and looks whether what it read belongs together. */
static void *read_on(void *arg)
{
    struct page *p = arg;
    while (!atomic_load(&over)) {
        uint64_t before = __atomic_load_n(&p->sequence, __ATOMIC_ACQUIRE);
        static _Thread_local char body[PAGE_BODY_BYTES];
        struct page_gpu gpus[PAGE_GPUS_MAX];
        uint32_t size = __atomic_load_n(&p->body_bytes, __ATOMIC_RELAXED);
        if (before % 2 || size > sizeof body)
            continue;
        memcpy(gpus, p->gpus, sizeof gpus);
        memcpy(body, p->body, size);
        __sync_synchronize();
        if (__atomic_load_n(&p->sequence, __ATOMIC_RELAXED) != before)
            continue;
        for (unsigned i = 0; i < PAGE_GPUS_MAX; i++)
            REQUIRE(gpus[i].idle_bytes == gpus[0].idle_bytes);
        for (uint32_t i = 0; i < size; i++)
            REQUIRE(body[i] == 'a' + (int)(gpus[0].idle_bytes % 26));
        REQUIRE(size == 1000 + gpus[0].idle_bytes % 50000);
        atomic_fetch_add(&whole, 1);
    }
    return NULL;
}

CASE(ten_readers_never_take_two_states_for_one)
{
    enum { READERS = 10 };
    static char body[PAGE_BODY_BYTES];
    static struct page_gpu gpus[PAGE_GPUS_MAX];
    pthread_t readers[READERS];
    unsigned number = 1;
    fill(body, 1001, gpus, number);
    struct page_state s = {.body = body, .body_bytes = 1001, .gpus = gpus, .num_gpus = 32};
    REQUIRE(page_make(dir, &s, &why));
    struct page *p = map_page();
    for (int i = 0; i < READERS; i++)
        REQUIRE(!pthread_create(&readers[i], NULL, read_on, p));
    uint64_t start_ns = clock_now_ns(), least_ns = UINT64_C(500000000), most_ns = 60 * least_ns;
    for (uint64_t ns = 0; ns < least_ns || (atomic_load(&whole) <= 100 && ns < most_ns);
         ns = clock_now_ns() - start_ns) {
        number++;
        s.body_bytes = 1000 + number % 50000;
        fill(body, s.body_bytes, gpus, number);
        REQUIRE(page_publish(&s));
        if (number % 16 == 0)
            usleep(1000);
    }
    usleep(10000);
    atomic_store(&over, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    REQUIRE(number > 100 && atomic_load(&whole) > 100);
}

PLAY_TESTS
