/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/store_file.c, and shim/park/store.c with a folder: files without a name, and what a
 * full, failing or foreign folder does. */
#include "shim/park/store.h"
#include "shim/park/store_file.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "tests/unit/proc.h"

#define MIB (UINT64_C(1) << 20)

enum { WHY_BYTES = 256, BYTES = 3 * 1024 * 1024 };

static char folder[64];
static char why[WHY_BYTES];
static char pattern[BYTES], back[BYTES];
static struct store s;

/* What the kernel or the file system lacks. */
static bool no_fallocate, no_tmpfile, no_unlink, no_writes;

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __real_msync(void *at, size_t size, int flags);
int __wrap_msync(void *at, size_t size, int flags);
int __real_unlinkat(int dir, const char *path, int flags);
int __wrap_unlinkat(int dir, const char *path, int flags);

/* The first thread's, with the one that counts, if it counts its own. */
static unsigned program_descriptors;

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == SYS_fallocate)
        program_descriptors = entries_of("/proc/self/fd");
    if (number == SYS_fallocate && no_fallocate) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

/* open is one of the two, as the size of file offsets says. */
int __wrap_open64(const char *path, int flags, mode_t mode)
{
    return __wrap_open(path, flags, mode);
}

int __wrap_open(const char *path, int flags, mode_t mode)
{
    if ((flags & O_TMPFILE) == O_TMPFILE && no_tmpfile) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_open(path, flags, mode);
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
    if (!no_unlink)
        return __real_unlinkat(dir, path, flags);
    __real_unlinkat(dir, path, flags); /* for the next test */
    errno = EIO;
    return -1;
}

/* The kernel tells of lost bytes once. */
int __wrap_msync(void *at, size_t size, int flags)
{
    if (!no_writes)
        return __real_msync(at, size, flags);
    no_writes = false;
    errno = EIO;
    return -1;
}

static int make_folder(void **state)
{
    no_fallocate = no_tmpfile = no_unlink = no_writes = false;
    for (size_t i = 0; i < BYTES; i++)
        pattern[i] = (char)(i * 2654435761u >> 24);
    snprintf(folder, sizeof folder, "/tmp/store-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    store_free(&s);
    return rmdir(folder); /* it is empty */
}

/* A store with one row, in the folder. */
static bool begin(uint64_t bytes)
{
    return store_begin(&s, folder, 64 * MIB, bytes, why, sizeof why) &&
           store_extend(&s, bytes, why, sizeof why);
}

static void expect_bytes_come_back(void)
{
    const struct store_row *row = store_add(&s, 4096, BYTES);
    assert_true(row && store_make_usable(&s, why, sizeof why));
    assert_true(store_file_put(s.bytes + row->offset, pattern, BYTES));
    store_settle(&s);
    memset(back, 0, BYTES);
    assert_true(store_file_get(back, s.bytes + row->offset, BYTES));
    assert_memory_equal(back, pattern, BYTES);
    assert_true(store_is_whole(&s));
}

TEST_WITH(bytes_are_in_a_file_without_a_name, make_folder, remove_folder)
{
    unsigned descriptors = entries_of("/proc/self/fd");
    assert_true(begin(BYTES));
    assert_int_equal(entries_of("/proc/self/fd"), descriptors);
    assert_int_equal(program_descriptors, descriptors - 1);
    assert_int_equal(entries_of(folder), 0);
    expect_bytes_come_back();
    assert_int_equal(entries_of(folder), 0);
}

TEST_WITH(a_file_system_may_lack_what_makes_it_simple, make_folder, remove_folder)
{
    no_tmpfile = true;
    assert_true(begin(BYTES));
    assert_int_equal(entries_of(folder), 0);
    expect_bytes_come_back();
    store_free(&s);
    no_fallocate = true;
    assert_true(begin(BYTES));
    expect_bytes_come_back();
}

TEST_WITH(a_file_that_keeps_its_name_is_refused, make_folder, remove_folder)
{
    no_tmpfile = no_unlink = true;
    assert_false(begin(BYTES));
    assert_non_null(strstr(why, "cannot be made: error 5"));
    assert_int_equal(s.usable_bytes, 0);
}

static unsigned asked;

static bool goes_on_twice(void)
{
    return ++asked <= 2;
}

TEST_WITH(a_use_stops_the_filling_of_a_file, make_folder, remove_folder)
{
    no_fallocate = true;
    asked = 0;
    assert_true(store_begin(&s, folder, 128 * MIB, 100 * MIB, why, sizeof why));
    s.goes_on = goes_on_twice;
    assert_false(store_extend(&s, 100 * MIB, why, sizeof why));
    assert_string_equal(why, "the program used the GPU meanwhile");
    assert_int_equal(asked, 3);
    assert_int_equal(s.usable_bytes, 0);
    assert_int_equal(entries_of(folder), 0);
}

/* The limit on the size of files stands for a disk that is full at any megabyte. */
TEST_WITH(too_little_room_is_refused_and_nothing_is_left, make_folder, remove_folder)
{
    struct rlimit before, less;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (int writes = 0; writes < 2; writes++) {
        no_fallocate = writes;
        for (uint64_t mib = 0; mib < 8; mib++) {
            less = (struct rlimit){mib * MIB, before.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
            assert_false(begin(7 * MIB)); /* 8 MiB of whole huge pages */
            setrlimit(RLIMIT_FSIZE, &before);
            assert_non_null(strstr(why, "may not write a file of 0.00 GiB"));
            assert_int_equal(s.usable_bytes, 0);
            assert_int_equal(entries_of(folder), 0);
        }
        less.rlim_cur = 8 * MIB;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
        assert_true(begin(7 * MIB));
        setrlimit(RLIMIT_FSIZE, &before);
        expect_bytes_come_back();
        store_free(&s);
    }
}

static fsblkcnt_t free_blocks(void)
{
    struct statvfs fs;
    assert_int_equal(statvfs(folder, &fs), 0);
    return fs.f_bfree;
}

/* In a child, whose mounts nobody else sees. 1: it may not mount. */
static int on_small_disks(void)
{
    char options[32];
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return 1;
    for (int mib = 1; mib <= 9; mib++) {
        snprintf(options, sizeof options, "size=%dm", mib);
        if (mount("none", folder, "tmpfs", 0, options))
            return 1;
        fsblkcnt_t before = free_blocks();
        no_fallocate = mib % 2;
        bool made = begin(7 * MIB);
        if (made != (mib >= 8) || (!made && !strstr(why, "has no room for 0.00 GiB")))
            return 2;
        store_free(&s);
        if (free_blocks() != before || entries_of(folder))
            return 3;
        umount(folder);
    }
    return 0;
}

TEST_WITH(a_full_disk_is_refused_at_every_megabyte, make_folder, remove_folder)
{
    pid_t child = fork();
    if (!child)
        _exit(on_small_disks());
    int status = child_status(child);
    if (status == 1 << 8)
        skip();
    assert_int_equal(status, 0);
}

static void expect_refused(const char *place, const char *words)
{
    assert_false(store_begin(&s, place, MIB, MIB, why, sizeof why) &&
                 store_extend(&s, MIB, why, sizeof why));
    assert_non_null(strstr(why, words));
    store_free(&s);
}

TEST_WITH(a_folder_that_does_not_serve_is_refused_in_words, make_folder, remove_folder)
{
    char path[128], long_path[300];
    FILE *file;
    expect_refused("scratch", "scratch is no absolute name");
    snprintf(path, sizeof path, "%s/none", folder);
    expect_refused(path, "/none is missing");
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    expect_refused(path, "/none is no folder");
    unlink(path);
    memset(long_path, '/', sizeof long_path);
    long_path[sizeof long_path - 1] = '\0';
    expect_refused(long_path, "too long");
    expect_refused("/proc", "/proc");
    if (geteuid())
        skip();
    assert_int_equal(chown(folder, 12345, 12345), 0);
    expect_refused(folder, "belongs to another user");
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(seteuid(65534), 0);
    store_begin(&s, folder, MIB, MIB, why, sizeof why);
    bool made = store_extend(&s, MIB, why, sizeof why);
    assert_int_equal(seteuid(0), 0);
    assert_false(made);
    assert_non_null(strstr(why, folder));
}

/* The mapping gets another file, of no bytes, and later its own again. */
TEST_WITH(a_file_that_was_cut_off_is_an_error_and_a_later_try_is_right, make_folder, remove_folder)
{
    int empty;
    assert_true(begin(BYTES));
    expect_bytes_come_back();
    char *at = s.bytes;
    size_t size = s.usable_bytes;
    char *own = mremap(at, 0, size, MREMAP_MAYMOVE); /* a second mapping of the same file */
    assert_true(own != MAP_FAILED);
    empty = memfd_create("empty", 0);
    assert_true(empty >= 0 &&
                mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty, 0) == at);
    close(empty);
    assert_false(store_file_get(back, at, BYTES));
    assert_false(store_file_put(at, pattern, BYTES));
    assert_true(mremap(own, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
    memset(back, 0, BYTES);
    assert_true(store_file_get(back, at, BYTES));
    assert_memory_equal(back, pattern, BYTES);
}

TEST_WITH(bytes_that_a_disk_has_lost_stay_lost, make_folder, remove_folder)
{
    assert_true(begin(BYTES));
    expect_bytes_come_back();
    no_writes = true;
    assert_false(store_is_whole(&s));
    assert_false(store_is_whole(&s));
    store_free(&s);
    assert_true(begin(BYTES));
    expect_bytes_come_back();
}

TEST_WITH(a_second_park_has_a_file_of_its_own, make_folder, remove_folder)
{
    assert_true(begin(BYTES));
    expect_bytes_come_back();
    struct store_mark mark = store_mark(&s);
    uint64_t usable = s.usable_bytes;
    assert_true(store_begin(&s, "", 0, 8 * MIB, why, sizeof why)); /* stays where it is */
    assert_string_equal(s.folder, folder);
    assert_true(store_extend(&s, s.used_bytes + 8 * MIB, why, sizeof why));
    assert_int_equal(s.num_files, 2);
    const struct store_row *row = store_add(&s, 64 * MIB, 8 * MIB);
    assert_true(row && store_file_put(s.bytes + row->offset, pattern, BYTES));
    assert_true(store_file_get(back, s.bytes + row->offset, BYTES));
    assert_memory_equal(back, pattern, BYTES);
    store_cut(&s, mark);
    assert_int_equal(s.usable_bytes, usable);
    assert_false(store_file_get(back, s.bytes + usable, 4096));
    assert_true(store_file_get(back, s.bytes, BYTES));
    assert_memory_equal(back, pattern, BYTES);
    assert_true(store_is_whole(&s));
}

TEST_WITH(more_than_was_awaited_gets_another_file, make_folder, remove_folder)
{
    assert_true(begin(MIB));
    const struct store_row *row = store_add(&s, 4096, 32 * MIB);
    assert_true(row && store_make_usable(&s, why, sizeof why));
    assert_true(store_file_put(s.bytes + row->offset + 30 * MIB, pattern, MIB));
    assert_int_equal(s.num_files, 2);
    assert_true(s.usable_bytes >= 32 * MIB);
}

TEST_WITH(a_locked_process_keeps_no_bytes_in_memory, make_folder, remove_folder)
{
    if (mlockall(MCL_FUTURE))
        skip();
    uint64_t before = resident_bytes();
    assert_true(begin(48 * MIB));
    assert_true(resident_bytes() < before + 16 * MIB);
    for (uint64_t at = 0; at < 48 * MIB; at += BYTES)
        assert_true(store_file_put(s.bytes + at, pattern, BYTES));
    store_settle(&s);
    assert_true(resident_bytes() < before + 16 * MIB);
    expect_bytes_come_back();
    munlockall();
}

TEST_WITH(a_child_has_no_mapping_of_it, make_folder, remove_folder)
{
    assert_true(begin(BYTES));
    expect_bytes_come_back();
    pid_t child = fork();
    if (!child)
        _exit(store_file_get(back, s.bytes, 4096));
    assert_int_equal(child_status(child), 0);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    return play_tests(NULL, NULL);
}
