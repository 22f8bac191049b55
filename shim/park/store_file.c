/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See store_file.h; the numbers below are those of its steps.
 */
#include "shim/park/store_file.h"

#include "pool/bits.h"
#include "shim/process/descriptors.h"
#include "shim/process/fork_gate.h"
#include "shim/process/futex.h"
#include "shim/process/kernel.h"
#include "shim/process/own_thread.h"
#include "shim/process/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#define TMPFS 0x01021994
#define RAMFS 0x858458f6
#define GIB (UINT64_C(1) << 30)
#define STACK_BYTES (64 * 1024)

/* So many zeros are on the disk before a park that fills a file is asked whether it goes on. */
#define FILL_BYTES (UINT64_C(16) << 20)

enum { ZEROS_BYTES = 64 * 1024, NAME_BYTES = 64, PAGE_BYTES = 4096 };

/* What the thread of step 3 is to do, and what came of it. */
static struct {
    const char *folder;
    char *at;
    uint64_t size_bytes;
    bool (*goes_on)(void);
    enum { MADE, NO_TABLE, NO_FILE, NO_ROOM, NO_MAPPING } end;
    int error;
    _Atomic uint32_t is_over; /* a futex */
} making;

bool store_file_allowed(const char *folder, char *why, size_t why_bytes)
{
    struct stat st;
    const char *fault = NULL;

    if (folder[0] != '/')
        fault = "is no absolute name";
    else if (kernel_fstatat(AT_FDCWD, folder, &st, 0))
        fault = errno == EACCES ? "is out of reach" : "is missing";
    else if (!S_ISDIR(st.st_mode))
        fault = "is no folder";
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        fault = "belongs to another user";
    if (fault)
        snprintf(why, why_bytes, "%.160s %s", folder, fault);
    return !fault;
}

bool store_file_is_memory(const char *folder)
{
    struct statfs fs;

    return !statfs(folder, &fs) && (fs.f_type == TMPFS || fs.f_type == RAMFS);
}

/* Step 1. The descriptor; -1: there is none. */
static int open_nameless(const char *folder)
{
    char name[NAME_BYTES];
    uint64_t number = 0;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT))
        return fd;
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -1;
    kernel_getrandom(&number, sizeof number);
    snprintf(name, sizeof name, ".gpucache-park-%d-%llx", (int)getpid(),
             (unsigned long long)number);
    fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && unlinkat(dir, name, 0)) { /* it would outlive the process */
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

/* Step 2. */
static bool allocate_file(int fd, uint64_t size_bytes)
{
    static const char zeros[ZEROS_BYTES];

    if (!syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)size_bytes))
        return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return false;
    for (uint64_t at = 0; at < size_bytes;) {
        ssize_t n = pwrite(fd, zeros, min_u64(sizeof zeros, size_bytes - at), (off_t)at);
        if (n <= 0)
            return false;
        at += (uint64_t)n;
        if (at % FILL_BYTES && at < size_bytes)
            continue;
        if (fsync(fd))
            return false;
        if (making.goes_on && !making.goes_on()) {
            errno = ECANCELED;
            return false;
        }
    }
    return true;
}

/* Step 6, and step 5 of store.h. The mapping takes the place of the one at `at` only when nothing
 * else can fail. */
static bool map_file(int fd)
{
    char *to = making.at, *p;
    uint64_t size = making.size_bytes;

    fork_gate_enter();
    p = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        munlock(p, size);
    if (p != MAP_FAILED &&
        (mprotect(p, size, PROT_READ | PROT_WRITE) || madvise(p, size, MADV_DONTFORK) ||
         mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)) {
        munmap(p, size);
        p = MAP_FAILED;
    }
    fork_gate_leave();
    if (p == MAP_FAILED)
        return false;
    madvise(to, size, MADV_DONTDUMP);
    return true;
}

/* On the thread of step 3. */
static void make_on_thread(void)
{
    int fd = -1;

    errno = 0;
    if (descriptors_leave() != DESCRIPTORS_OWN)
        making.end = NO_TABLE;
    else if ((fd = open_nameless(making.folder)) < 0)
        making.end = NO_FILE;
    else if (!allocate_file(fd, making.size_bytes))
        making.end = NO_ROOM;
    else if (!map_file(fd))
        making.end = NO_MAPPING;
    else
        making.end = MADE;
    making.error = errno;
    if (fd >= 0)
        close(fd); /* now, and not at some time after the wait for this thread */
    atomic_store(&making.is_over, 1);
    futex_wake_all(&making.is_over, FUTEX_OF_PROCESS);
}

static void say_end(char *why, size_t why_bytes)
{
    struct figure size = text_fixed(making.size_bytes, GIB, 2);
    int error = making.error;

    if (making.end == NO_TABLE)
        snprintf(why, why_bytes, "the kernel allows the library no descriptors of its own");
    else if (error == EACCES || error == EPERM || error == EROFS)
        snprintf(why, why_bytes, "the process may not write to %.160s", making.folder);
    else if (error == ENOSPC || error == EDQUOT)
        snprintf(why, why_bytes, "%.160s has no room for %s GiB", making.folder, size.text);
    else if (error == ECANCELED)
        snprintf(why, why_bytes, "the program used the GPU meanwhile");
    else if (error == EFBIG)
        snprintf(why, why_bytes, "the process may not write a file of %s GiB", size.text);
    else
        snprintf(why, why_bytes, "%.160s: a file of %s GiB cannot be %s: error %d", making.folder,
                 size.text, making.end == NO_MAPPING ? "mapped" : "made", error);
}

bool store_file_map(const char *folder, char *at, uint64_t size_bytes, bool (*goes_on)(void),
                    char *why, size_t why_bytes)
{
    static const struct own_thread thread = {"gpucache-file", STACK_BYTES, make_on_thread};

    making.folder = folder;
    making.at = at;
    making.size_bytes = size_bytes;
    making.goes_on = goes_on;
    atomic_store(&making.is_over, 0);
    if (!own_thread_start(&thread)) {
        snprintf(why, why_bytes, "the process gets no thread for it");
        return false;
    }
    while (!atomic_load(&making.is_over))
        futex_wait(&making.is_over, 0, FUTEX_FOREVER, FUTEX_OF_PROCESS);
    if (making.end != MADE)
        say_end(why, why_bytes);
    return making.end == MADE;
}

bool store_file_is_whole(char *at)
{
    return !msync(at, PAGE_BYTES, MS_SYNC); /* one page, and the notes of the whole file */
}

/* The copies name the process by the calling thread. Once the first thread has ended, the kernel
 * finds no memory under the number of the process. */
bool store_file_put(char *to, const char *from, size_t size_bytes)
{
    struct iovec here = {(char *)(uintptr_t)from, size_bytes}, there = {to, size_bytes};

    return process_vm_writev(kernel_gettid(), &here, 1, &there, 1, 0) == (ssize_t)size_bytes;
}

/* All of it is asked from the disk at once: the kernel asks for little ahead of scattered reads. */
bool store_file_get(char *to, const char *from, size_t size_bytes)
{
    struct iovec here = {to, size_bytes}, there = {(char *)(uintptr_t)from, size_bytes};
    uintptr_t page = (uintptr_t)from / PAGE_BYTES * PAGE_BYTES;

    madvise((char *)page, (uintptr_t)from + size_bytes - page, MADV_WILLNEED);
    return process_vm_readv(kernel_gettid(), &here, 1, &there, 1, 0) == (ssize_t)size_bytes;
}
