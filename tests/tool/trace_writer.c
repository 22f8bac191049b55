/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Writes traces (shim/trace) for the tests of their reader: trace_writer SCENE FILE. The scene
 * large:N has N records.
 */
#include "tests/tool/trace_writer.h"

#include "shim/trace/objects.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* One of each kind, then sizes and addresses of all sorts. */
static void all_kinds(const char *path)
{
    TRACE(CONTEXT, .a = 0, .b = 80 << 20, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 64 * MIB, .aux = 1234, .context = 1);
    TRACE(MAP, .a = FIRST + 64 * MIB, .b = 2 * MIB);
    TRACE(FLUSH, .a = 5 * MIB, .b = 777, .text = "signal");
    TRACE(ALLOC_FAILED, .a = 2, .b = 1 << 30, .caller = AT(all_kinds));
    alloc(FIRST, 512, AT(all_kinds));
    alloc(FIRST + 512, 1, AT(alloc));
    alloc(FIRST + 1024, (1 << 24) - 1, AT(all_kinds));
    alloc(FIRST + 64 * MIB, 1 << 24, AT(all_kinds));
    alloc(FIRST + 96 * MIB, UINT64_C(1) << 40, AT(all_kinds));
    alloc(FAR, 300, AT(all_kinds));
    alloc(FIRST - 512, 300, AT(all_kinds));
    alloc(FIRST + 300, 300, NULL);
    give(FIRST, AT(give));
}

void weights(void)
{
}
void churner(void)
{
    __asm__ volatile("");
}
void leaker(void)
{
    __asm__ volatile("nop");
}
void spike(void)
{
    __asm__ volatile("nop; nop");
}

/* A program that holds, frees and asks again, leaks, and has one high moment. */
static void a_program(const char *path)
{
    struct timespec step = {.tv_nsec = 1000000};
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 1024 * MIB, .aux = 5000, .context = 1);
    alloc(FIRST, 100 * MIB, AT(weights));
    for (uint64_t i = 0; i < 400; i++) {
        alloc(FIRST + 200 * MIB, MIB, AT(churner));
        if (i % 10 == 0)
            alloc(FIRST + (300 + i) * MIB, MIB, AT(leaker));
        if (i == 200) {
            alloc(FIRST + 800 * MIB, 200 * MIB, AT(spike));
            nanosleep(&step, NULL);
            give(FIRST + 800 * MIB, AT(spike));
            TRACE(FLUSH, .a = 24 * MIB, .b = 3000, .text = "signal");
        }
        nanosleep(&step, NULL);
        give(FIRST + 200 * MIB, AT(churner));
        give(FAR, AT(churner)); /* of before the trace */
    }
    TRACE(ALLOC_FAILED, .a = 2, .b = 4096 * MIB, .caller = AT(spike));
    TRACE(PASSED, .b = 7 * MIB, .aux = 0, .caller = AT(spike));
}

/* All of it is on the host in the middle third of the time; nothing was idle. */
static void parked(const char *path)
{
    struct timespec third = {.tv_nsec = 50000000};
    TRACE(CONTEXT, .a = 0, .b = 1024 * MIB, .context = 1, .text = "GPU-1 a GPU");
    TRACE(CREATE, .a = 1, .b = 128 * MIB, .aux = 5000, .context = 1);
    alloc(FIRST, 100 * MIB, AT(parked));
    nanosleep(&third, NULL);
    TRACE(FLUSH, .b = 300, .text = "park");
    TRACE(FLUSH, .b = 300, .text = "park");
    TRACE(RELEASE, .a = 1, .b = 128 * MIB, .context = 1);
    TRACE(PARK, .a = 128 * MIB, .b = 777);
    nanosleep(&third, NULL);
    TRACE(CREATE, .a = 2, .b = 128 * MIB, .aux = 5000, .context = 1);
    TRACE(WAKE, .a = 128 * MIB, .b = 888);
    nanosleep(&third, NULL);
}

/* Words that would be programs in a page. */
static void hostile(const char *path)
{
    const char *script =
        "</script><script>document.title = 'foreign'</script><img src=x onerror=1>";
    prctl(PR_SET_NAME, "<b>thread</b>", 0, 0, 0);
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 <img src=x onerror=1>");
    TRACE(OPTION, .text = script);
    alloc(FIRST, 100 * MIB, AT(weights));
    TRACE(OOM_STEP, .a = MIB, .text = script);
    TRACE(FLUSH, .a = MIB, .b = 3000, .text = "${data} $data \\u003c");
}

static void *in_a_thread(void *arg)
{
    uintptr_t number = (uintptr_t)arg;
    char name[16];
    snprintf(name, sizeof name, "worker %u", (unsigned)number);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    for (uint64_t i = 0; i < 12000; i++) {
        alloc(FIRST + number * 64 * MIB + i * 512, 1 + number, (void *)(FAR + i % 700 * 16));
        give(FIRST + number * 64 * MIB + i * 512, AT(in_a_thread));
    }
    return NULL;
}

static void threads(const char *path)
{
    for (int round = 0; round < 2; round++) {
        pthread_t all[4];
        for (uintptr_t i = 0; i < 4; i++)
            pthread_create(&all[i], NULL, in_a_thread, (void *)i);
        for (int i = 0; i < 4; i++)
            pthread_join(all[i], NULL);
    }
}

/* So many records, of blocks of all sizes that live for a while, of code all over. */
static void large(uint64_t num_records)
{
    enum { LIVE = 4096 };
    static uint64_t sizes[LIVE];
    uint64_t seed = 1;
    TRACE(CONTEXT, .a = 0, .b = 80ull << 30, .context = 1, .text = "GPU-1 a GPU");
    TRACE(SEGMENT, .a = FIRST, .b = 64ull << 30, .aux = 5000, .context = 1);
    for (uint64_t i = 0; i < num_records / 2; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t place = seed >> 33 & (LIVE - 1), addr = FIRST + place * 16 * MIB;
        if (sizes[place])
            give(addr, AT(give));
        sizes[place] = 512 + (seed >> 45) % (i % 7 ? 65536 : 4 * MIB);
        alloc(addr, sizes[place], (void *)(FAR + (seed >> 20) % 600 * 16));
    }
}

/* The recorder's locks: so often another thread has them. */
static __thread int times_held;

int pthread_mutex_trylock(pthread_mutex_t *lock)
{
    struct timespec past = {0};
    if (times_held && times_held--)
        return EBUSY;
    return pthread_mutex_timedlock(lock, &past) ? EBUSY : 0;
}

/* Both wait for a lock, and do all that is to be done, before the thread ends. */
static void *cancelled_in_a_record(void *arg)
{
    pthread_cancel(pthread_self());
    times_held = 2;
    alloc(FIRST, 111, AT(cancelled_in_a_record));
    return arg;
}

static void *cancelled_in_a_begin(void *path)
{
    pthread_cancel(pthread_self());
    times_held = 2;
    trace_begin(path);
    alloc(FIRST, 222, AT(cancelled_in_a_begin));
    return path;
}

static void cancelled(const char *path)
{
    char other[4096];
    pthread_t thread;
    pthread_create(&thread, NULL, cancelled_in_a_record, NULL);
    pthread_join(thread, NULL);
    snprintf(other, sizeof other, "%s.2", path);
    pthread_create(&thread, NULL, cancelled_in_a_begin, other);
    pthread_join(thread, NULL);
    snprintf(other, sizeof other, "%s.3", path);
    trace_begin(other);
    alloc(FIRST, 333, AT(cancelled));
}

void ask(uint64_t addr, uint64_t size_bytes)
{
    if (trace_is_on())
        trace_note_alloc(addr, size_bytes, __builtin_return_address(0));
}
void middle(uint64_t addr, uint64_t size_bytes, unsigned depth)
{
    if (depth)
        middle(addr, size_bytes, depth - 1);
    else
        ask(addr, size_bytes);
    __asm__ volatile("");
}
void loads(uint64_t addr, uint64_t size_bytes)
{
    middle(addr, size_bytes, 0);
    __asm__ volatile("");
}
void trains(uint64_t addr, uint64_t size_bytes)
{
    middle(addr, size_bytes, 1);
    __asm__ volatile("");
}

__attribute__((noinline)) static void fails(void)
{
    TRACE_CALL(ALLOC_FAILED, .a = 2, .b = 1 << 30, .caller = __builtin_return_address(0));
}

/* By two paths to the same caller, with small and large sizes; what fails; then without paths. */
__attribute__((noinline)) static void paths(const char *path)
{
    TRACE(CONTEXT, .a = 0, .b = 16 << 20, .context = 1, .text = "GPU-1 a GPU");
    fails();
    trace_set_depth(8, true);
    for (uint64_t i = 0; i < 100; i++) {
        loads(FIRST + i * MIB, MIB);
        trains(FIRST + (200 + i * 32) * MIB, 32 * MIB);
        give(FIRST + (200 + i * 32) * MIB, AT(trains));
    }
    trains(FIRST + 150 * MIB, 5 * MIB);
    fails();
    trace_set_depth(8, false);
    loads(FIRST + 160 * MIB, 7 * MIB);
}

/* Of deep paths. */
static void many_paths(const char *path)
{
    trace_set_depth(STACK_FRAMES_MOST, true);
    for (uint64_t i = 0; i < 20000; i++)
        middle(FIRST + i * 512, 512, i * 7 % 50);
}

static void *one_record(void *arg)
{
    alloc(FIRST + (uint64_t)(uintptr_t)arg * 512, 512, AT(one_record));
    return NULL;
}

static void short_threads(const char *path)
{
    for (uintptr_t i = 0; i < 500; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, one_record, (void *)i);
        pthread_join(thread, NULL);
    }
}

static void killed(const char *path)
{
    for (uint64_t i = 0; i < 30000; i++)
        alloc(FIRST + i * 512, 512, AT(killed));
    raise(SIGKILL);
}

/* Once, another thread of the program closes the recorder's descriptor, and gets its number for a
 * file of its own. */
static enum { NEVER, AFTER_OPEN, AT_INTERRUPTION, AFTER_ALLOCATE, BEFORE_MAP } theft;
static int others_file, stolen;

static void steal(int fd)
{
    stolen = dup2(others_file, fd);
    theft = NEVER;
}

int __real_open64(const char *name, int flags, ...);
int __wrap_open64(const char *name, int flags, ...);
int __wrap_open64(const char *name, int flags, ...)
{
    int fd = __real_open64(name, flags, 0600); /* the recorder's mode, if it makes a file */
    if (theft == AFTER_OPEN && flags & O_RDWR)
        steal(fd);
    return fd;
}

/* As where the file is in memory and a timer interrupts it. */
static int interruptions;
/* As on a disk that is full: chunks that it has room for, and one more. 0: it is not full. */
static int room;

int __real_posix_fallocate64(int fd, off_t start, off_t size_bytes);
int __wrap_posix_fallocate64(int fd, off_t start, off_t size_bytes);
int __wrap_posix_fallocate64(int fd, off_t start, off_t size_bytes)
{
    if (theft == AT_INTERRUPTION) {
        steal(fd);
        return EINTR;
    }
    if (interruptions && interruptions--)
        return EINTR;
    if (room == 1)
        return ENOSPC;
    room -= room > 0;
    int rc = __real_posix_fallocate64(fd, start, size_bytes);
    if (theft == AFTER_ALLOCATE)
        steal(fd);
    return rc;
}

void *__real_mmap64(void *at, size_t size_bytes, int protection, int flags, int fd, off_t start);
void *__wrap_mmap64(void *at, size_t size_bytes, int protection, int flags, int fd, off_t start);
void *__wrap_mmap64(void *at, size_t size_bytes, int protection, int flags, int fd, off_t start)
{
    if (stolen && fd == stolen)
        fprintf(stderr, "the other file is mapped\n");
    if (theft == BEFORE_MAP && fd >= 0)
        steal(fd);
    return __real_mmap64(at, size_bytes, protection, flags, fd, start);
}

/* The number is the other file's still. */
static void end_theft(void)
{
    struct stat st, others;
    if (theft || fstat(stolen, &st) || fstat(others_file, &others) || st.st_ino != others.st_ino)
        fprintf(stderr, "the other file's descriptor is gone\n");
    close(stolen);
    stolen = 0;
}

/* Four chunks, for each of which the descriptor is stolen at another step. Then a trace that does
 * not begin: its file is "FILE.2". The other file is "FILE.other". */
static void stolen_descriptors(const char *path)
{
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    others_file = open(other, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (others_file < 0 || ftruncate(others_file, TRACE_HEADER_BYTES))
        abort();
    for (int step = AFTER_OPEN; step <= BEFORE_MAP; step++) {
        theft = step;
        for (uint64_t i = 0; i < 20000; i++)
            alloc(FIRST + i * 512, 222, AT(stolen_descriptors));
        end_theft();
    }
    trace_note_lost();
    snprintf(other, sizeof other, "%s.2", path);
    theft = AFTER_OPEN;
    trace_begin(other);
    end_theft();
}

static void interrupted(const char *path)
{
    for (uint64_t i = 0; i < 30000; i++) {
        interruptions = 3;
        alloc(FIRST + i * 512, 512, AT(interrupted));
    }
}

/* The disk has room for two chunks, and again for the trace "FILE.2". */
static void full_disk(const char *path)
{
    char other[4096];
    room = 3;
    for (uint64_t i = 0; i < 80000; i++)
        alloc(FIRST + i * 512, 512, AT(full_disk));
    room = 0;
    snprintf(other, sizeof other, "%s.2", path);
    trace_begin(other);
    alloc(FIRST, 222, AT(full_disk));
}

/* Two chunks and more, while the process has no descriptor left. *before: how many it may have. */
static void record_without_descriptors(struct rlimit *before)
{
    getrlimit(RLIMIT_NOFILE, before);
    struct rlimit few = {0, before->rlim_max};
    alloc(FIRST, 111, AT(record_without_descriptors));
    setrlimit(RLIMIT_NOFILE, &few);
    for (uint64_t i = 0; i < 40000; i++)
        alloc(FIRST + i * 512, 222, AT(record_without_descriptors));
}

static void without_descriptors(const char *path)
{
    struct rlimit before;
    record_without_descriptors(&before);
    setrlimit(RLIMIT_NOFILE, &before);
    alloc(FIRST, 333, AT(without_descriptors));
    trace_note_lost();
}

static void without_descriptors_at_last(const char *path)
{
    struct rlimit before;
    record_without_descriptors(&before);
    trace_end();
    setrlimit(RLIMIT_NOFILE, &before); /* sanitizers need some at the exit */
}

static void again(const char *path)
{
    char other[4096];
    snprintf(other, sizeof other, "%s.2", path);
    alloc(FIRST, 111, AT(again));
    trace_begin(other);
    alloc(FIRST, 222, AT(again));
    trace_begin("");
    alloc(FIRST, 333, AT(again));
}

static void in_a_child(const char *path)
{
    alloc(FIRST, 111, AT(in_a_child));
    pid_t pid = fork();
    if (!pid) {
        trace_leave();
        alloc(FIRST, 222, AT(in_a_child));
        _exit(0);
    }
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    alloc(FIRST, 333, AT(in_a_child));
}

static void nothing(const char *path)
{
}

static const struct {
    const char *name;
    void (*play)(const char *path);
} scenes[] = {
    {"kinds", all_kinds},
    {"program", a_program},
    {"parked", parked},
    {"hostile", hostile},
    {"nothing", nothing},
    {"threads", threads},
    {"short", short_threads},
    {"paths", paths},
    {"many-paths", many_paths},
    {"paths-in-a-ring", paths_in_a_ring},
    {"killed", killed},
    {"interrupted", interrupted},
    {"full-disk", full_disk},
    {"descriptors", without_descriptors},
    {"descriptors-at-last", without_descriptors_at_last},
    {"stolen", stolen_descriptors},
    {"again", again},
    {"other-clock", other_clock},
    {"rings", rings},
    {"rings-late", rings_late},
    {"dumps", dumps},
    {"lost-dump", lost_in_a_dump},
    {"cancelled", cancelled},
    {"fork", in_a_child},
    {"dump-dump", dump_after_dump},
    {"freed-by-another", freed_by_another},
    {"freed-in-vain", freed_in_vain},
    {"killed-in-a-dump", killed_in_a_dump},
    {"handed-on", handed_on_in_a_dump},
    {"failed-dumps", failed_dumps},
    {"dump-of-another-name", dump_whose_name_is_taken},
};

int main(int argc, char **argv)
{
    size_t i = 0;
    if (argc != 3)
        return 2;
    if (!trace_begin(argv[2]))
        return 3;
    trace_objects_note();
    if (strncmp(argv[1], "large:", 6) == 0) {
        large(strtoull(argv[1] + 6, NULL, 10));
    } else {
        while (i < sizeof scenes / sizeof *scenes && strcmp(scenes[i].name, argv[1]) != 0)
            i++;
        if (i == sizeof scenes / sizeof *scenes)
            return 2;
        scenes[i].play(argv[2]);
    }
    trace_end();
    return 0;
}
