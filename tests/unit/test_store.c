/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/store.c: the room on the host by the kernel's files, and the rows. */
#include "shim/park/store.h"
#include "shim/park/store_file.h"
#include "shim/process/proc_text.h"

#include <sys/mman.h>

#include "tests/unit/made_root.h"
#include "tests/unit/proc.h"

#define MIB (UINT64_C(1) << 20)

enum { WHY_BYTES = 128, PATH_BYTES = 512, RANGES = 3000 };

static char why[WHY_BYTES];
static struct store s;
static bool is_in_root; /* what the store reads of the kernel lies below the root */

bool __real_proc_text_read_whole(const char *path, char *text, size_t size_bytes);
bool __wrap_proc_text_read_whole(const char *path, char *text, size_t size_bytes);
bool __wrap_proc_text_read_whole(const char *path, char *text, size_t size_bytes)
{
    char below[PATH_BYTES];
    snprintf(below, sizeof below, "%s%s", is_in_root ? root : "", path);
    return __real_proc_text_read_whole(below, text, size_bytes);
}

static int make_root(void **state)
{
    if (root_begin())
        return -1;
    put("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
    put("/proc/thread-self/cgroup", "0::/a/b\n");
    return 0;
}

static int remove_root(void **state)
{
    store_free(&s);
    is_in_root = false;
    return root_end();
}

#define CASE(name) TEST_WITH(name, make_root, remove_root)

/* The limit of a group, and what it uses. */
static void put_group(const char *group, const char *limit, const char *used)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
    put(path, limit);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
    put(path, used);
}

CASE(the_machine_has_room)
{
    assert_int_equal(store_room(root), 4096 * MIB);
    put("/proc/meminfo", "MemTotal:  8388608 kB\n");
    assert_int_equal(store_room(root), UINT64_MAX);
    assert_int_equal(store_room("/no/such/root"), UINT64_MAX);
    assert_true(store_room("") > MIB);
}

CASE(each_group_above_has_a_limit)
{
    put_group("/a/b", "max\n", "12345\n");
    assert_int_equal(store_room(root), 4096 * MIB);
    put_group("/a", "1073741824\n", "268435456\n");
    assert_int_equal(store_room(root), 768 * MIB);
    put_group("", "1073741824\n", "1073741825\n");
    assert_int_equal(store_room(root), 0);
}

CASE(files_that_nobody_reads_leave_room)
{
    put("/sys/fs/cgroup/a/b/memory.high", "1073741824\n");
    put_group("/a/b", "2073741824\n", "1073741824\n");
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 3\ninactive_file 104857600\nactive_file 7\n");
    assert_int_equal(store_room(root), 100 * MIB);
}

/* In a container the group has the machine's name, and the mount is the container's. */
CASE(groups_of_the_first_version)
{
    put("/proc/thread-self/cgroup", "5:cpu:/x\n4:memory:/docker/1\n1:name=systemd:/\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 1048576\n");
    assert_int_equal(store_room(root), 513 * MIB);
}

CASE(too_much_is_refused_in_words)
{
    assert_false(store_begin(&s, "", UINT64_C(1) << 50, UINT64_C(1) << 50, why, sizeof why));
    assert_non_null(strstr(why, "GiB are needed"));
    assert_null(s.bytes);
}

/* More addresses than a process has. */
CASE(too_many_addresses_are_refused_in_words)
{
    assert_false(store_begin(&s, "", UINT64_C(1) << 48, MIB, why, sizeof why));
    assert_string_equal(why, "the process may not map so much more host memory");
    assert_true(!s.bytes && !s.rows);
    assert_true(store_begin(&s, "", 4 * MIB, MIB, why, sizeof why));
}

/* Is the first byte of a page in memory? */
static bool is_resident(const char *at)
{
    unsigned char resident = 0;
    return mincore((void *)(uintptr_t)at, 1, &resident) == 0 && resident & 1;
}

/* The limit falls while host memory is made ready. */
CASE(each_step_looks_at_the_room_anew)
{
    is_in_root = true;
    put_group("/a", "2147483648\n", "4096\n");
    assert_true(store_begin(&s, "", 1024 * MIB, 1024 * MIB, why, sizeof why));
    assert_true(store_extend(&s, 1024 * MIB, why, sizeof why));
    assert_int_equal(s.usable_bytes, 256 * MIB);
    put("/sys/fs/cgroup/a/memory.current", "1073741824\n");
    assert_false(store_extend(&s, 1024 * MIB, why, sizeof why));
    assert_non_null(strstr(why, "the host has 1.0 GiB"));
    assert_int_equal(s.usable_bytes, 256 * MIB);
}

CASE(it_begins_at_a_huge_page)
{
    for (int i = 0; i < 8; i++) {
        void *shift = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(store_begin(&s, "", 3 * MIB, MIB, why, sizeof why));
        assert_int_equal((uintptr_t)s.bytes % (2 * MIB), 0);
        store_free(&s);
        munmap(shift, 4096);
    }
}

CASE(what_is_not_needed_goes_back)
{
    assert_true(store_begin(&s, "", 64 * MIB, 16 * MIB, why, sizeof why));
    assert_true(store_extend(&s, 16 * MIB, why, sizeof why));
    memset(s.bytes, 1, 16 * MIB);
    store_add(&s, 4096, 3 * MIB);
    store_settle(&s);
    assert_int_equal(s.usable_bytes, 4 * MIB);
    assert_true(is_resident(s.bytes + 3 * MIB - 4096));
    assert_false(is_resident(s.bytes + 4 * MIB));
}

CASE(a_twentieth_is_too_little)
{
    put("/proc/thread-self/cgroup", "0::/a\n");
    put("/proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  419431 kB\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put_group("/a", "1048576000\n", "996147200\n"); /* 950 of 1,000 MiB */
    assert_false(store_is_tight(root));
    put("/sys/fs/cgroup/a/memory.current", "996147201\n");
    assert_true(store_is_tight(root));
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    assert_false(store_is_tight(root));
    put("/proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  419429 kB\n");
    assert_true(store_is_tight(root));
    assert_false(store_is_tight("/no/such/root"));
}

/* A file in memory needs the host's room, and one on a disk does not. */
CASE(only_files_in_memory_need_room)
{
    put_group("/a", "1048576\n", "0\n");
    is_in_root = true;
    assert_false(store_begin(&s, "/dev/shm", 64 * MIB, 40 * MIB, why, sizeof why));
    assert_int_equal(store_begin(&s, "/tmp", 64 * MIB, 40 * MIB, why, sizeof why),
                     !store_file_is_memory("/tmp"));
}

static void put_room(uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)bytes);
    put("/sys/fs/cgroup/a/memory.max", text);
}

/* The kernel would kill the process. 200 MiB need 20th more of them, and 256 MiB stay for others.
 */
CASE(a_group_that_lacks_one_mib_refuses)
{
    put("/sys/fs/cgroup/a/memory.current", "0\n");
    is_in_root = true;
    put_room((200 + 10 + 256 - 1) * MIB);
    assert_false(store_begin(&s, "", 1024 * MIB, 200 * MIB, why, sizeof why));
    assert_null(s.bytes);
    put_room((200 + 10 + 256) * MIB);
    assert_true(store_begin(&s, "", 1024 * MIB, 200 * MIB, why, sizeof why));
    store_add(&s, MIB, 100 * MIB);
    assert_true(store_make_usable(&s, why, sizeof why));
    /* Others take it meanwhile. */
    store_add(&s, 512 * MIB, 200 * MIB);
    put_room(256 * MIB);
    assert_false(store_make_usable(&s, why, sizeof why));
    assert_non_null(strstr(why, "GiB are needed"));
    put_room(1024 * MIB);
    assert_true(store_make_usable(&s, why, sizeof why));
}

CASE(rows_are_found_in_any_order)
{
    assert_true(store_begin(&s, "", 1024 * MIB, MIB, why, sizeof why));
    for (uint64_t i = 0; i < RANGES; i++) { /* 7919 is a prime: each place once */
        uint64_t addr = i * 7919 % RANGES * 4096 + MIB;
        assert_int_equal(store_add(&s, addr, 512)->offset, i * 512);
    }
    assert_true(store_make_usable(&s, why, sizeof why));
    for (uint64_t i = 0; i < RANGES; i++) {
        uint64_t addr = i * 4096 + MIB;
        assert_int_equal(store_find(&s, addr, addr + 1)->addr, addr);
        assert_int_equal(store_find(&s, addr + 511, addr + 4096)->addr, addr);
        assert_null(store_find(&s, addr + 512, addr + 4096));
        assert_int_equal(store_find(&s, addr, addr + 1)->offset % 512, 0);
    }
    assert_int_equal(store_find(&s, 0, UINT64_MAX)->addr, MIB);
    assert_null(store_find(&s, MIB + RANGES * 4096, UINT64_MAX));
}

CASE(a_cut_store_gives_its_memory_back)
{
    assert_true(store_begin(&s, "", 64 * MIB, 16 * MIB, why, sizeof why));
    store_add(&s, 1 << 20, 8 * MIB);
    assert_true(store_make_usable(&s, why, sizeof why));
    memset(s.bytes, 1, 8 * MIB);
    struct store_mark mark = store_mark(&s);
    assert_true(store_begin(&s, "", 0, 16 * MIB, why, sizeof why));
    store_add(&s, 64 << 20, 8 * MIB);
    assert_null(store_add(&s, 128 << 20, 64 * MIB));
    assert_true(store_make_usable(&s, why, sizeof why));
    memset(s.bytes + 8 * MIB, 2, 8 * MIB);
    store_cut(&s, mark);
    assert_true(is_resident(s.bytes) && s.bytes[8 * MIB - 1] == 1);
    assert_false(is_resident(s.bytes + 8 * MIB));
    assert_null(store_find(&s, 64 << 20, UINT64_MAX));
    store_add(&s, 64 << 20, 8 * MIB);
    assert_true(store_make_usable(&s, why, sizeof why));
    memset(s.bytes + 8 * MIB, 3, 8 * MIB);
    store_cut(&s, (struct store_mark){0});
    assert_null(s.bytes);
}

static bool is_high(uint64_t addr)
{
    return addr >= 8 * MIB;
}

CASE(rows_of_what_stays_are_dropped)
{
    assert_true(store_begin(&s, "", 64 * MIB, 16 * MIB, why, sizeof why));
    store_add(&s, MIB, 4096);
    struct store_mark mark = store_mark(&s);
    for (uint64_t i = 4; i < 12; i++)
        store_add(&s, i * MIB, 4096);
    store_keep(&s, mark, is_high);
    assert_int_equal(s.num_rows, 5);
    assert_int_equal(store_find(&s, 0, UINT64_MAX)->addr, MIB);
    assert_null(store_find(&s, 4 * MIB, 8 * MIB));
    assert_int_equal(store_find(&s, 8 * MIB, UINT64_MAX)->offset, 5 * 4096);
    assert_int_equal(store_find(&s, 11 * MIB, UINT64_MAX)->addr, 11 * MIB);
}

static bool child_has(char *bytes)
{
    pid_t child = fork();
    if (!child)
        _exit(is_resident(bytes));
    int status = child_status(child);
    return status != 0;
}

/* An emulator of user programs takes MADV_DONTFORK without effect. */
static bool memory_can_stay_here(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED && !madvise(page, 4096, MADV_DONTFORK));
    *page = 1;
    bool stays = !child_has(page);
    munmap(page, 4096);
    return stays;
}

CASE(a_locked_process_keeps_no_more_than_it_needs)
{
    uint64_t before;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they lock nothing, and have memory of their own for each byte */
#endif
    if (mlockall(MCL_FUTURE))
        skip();
    before = resident_bytes();
    assert_true(store_begin(&s, "", 128 * MIB, 64 * MIB, why, sizeof why));
    assert_true(store_extend(&s, 64 * MIB, why, sizeof why));
    assert_true(resident_bytes() < before + 16 * MIB);
    memset(s.bytes, 1, 64 * MIB);
    assert_int_equal(mlock(s.bytes, 64 * MIB), 0); /* as mlockall(MCL_CURRENT) does */
    assert_non_null(store_add(&s, 4096, 2 * MIB));
    store_settle(&s);
    assert_true(resident_bytes() < before + 16 * MIB);
    store_free(&s);
    munlockall();
}

CASE(a_child_has_no_copy)
{
    if (!memory_can_stay_here())
        skip();
    assert_true(store_begin(&s, "", 4 * MIB, MIB, why, sizeof why));
    store_add(&s, 4096, MIB);
    assert_true(store_make_usable(&s, why, sizeof why));
    memset(s.bytes, 1, MIB);
    assert_false(child_has(s.bytes));
}

PLAY_TESTS
