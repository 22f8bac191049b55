/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/dir.h. What stands in a foreign file is only data. The library reads it with pread, and
 * the kernel rings its doorbell. So a file that shrinks meanwhile raises no signal.
 */
#include "shim/page/dir.h"

#include "shim/page/layout.h"
#include "shim/process/clock.h"
#include "shim/process/decimal.h"
#include "shim/process/futex.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define DAY_NS (86400 * SEC_NS)

/* False, with errno: there is no such process, or it cannot be read. */
static bool read_start(const char *path, uint64_t *pid, uint64_t *start_ticks)
{
    enum { START_TICKS_FIELD = 22 };
    char text[PROC_TEXT_BYTES];
    const char *first = text;

    if (!proc_text_read(path, text))
        return false;
    const char *start = proc_text_stat_field(text, START_TICKS_FIELD);
    return start && decimal_read(&first, pid) && decimal_read(&start, start_ticks);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool page_boot_id(unsigned char boot_id[PAGE_BOOT_BYTES])
{
    char text[PROC_TEXT_BYTES];
    unsigned count = 0;

    memset(boot_id, 0, PAGE_BOOT_BYTES);
    if (!proc_text_read("/proc/sys/kernel/random/boot_id", text))
        return false;
    for (const char *p = text; *p && count < 2 * PAGE_BOOT_BYTES; p++)
        if (digit(*p) >= 0) {
            boot_id[count / 2] = (unsigned char)(boot_id[count / 2] << 4 | digit(*p));
            count++;
        }
    if (count == 2 * PAGE_BOOT_BYTES)
        return true;
    memset(boot_id, 0, PAGE_BOOT_BYTES);
    return false;
}

bool page_id_self(struct page_id *id)
{
    struct stat st;

    if (kernel_fstatat(AT_FDCWD, "/proc/self/ns/pid", &st, 0) ||
        !read_start("/proc/self/stat", &id->pid, &id->start_ticks))
        return false;
    id->pid_namespace = st.st_ino;
    return id->pid == (uint64_t)getpid();
}

void page_id_name(const struct page_id *id, char name[PAGE_NAME_MAX])
{
    snprintf(name, PAGE_NAME_MAX, "%" PRIu64 "-%" PRIu64 "-%" PRIu64 PAGE_SUFFIX, id->pid_namespace,
             id->pid, id->start_ticks);
}

bool page_id_parse(const char *name, struct page_id *id)
{
    return decimal_read(&name, &id->pid_namespace) && *name++ == '-' &&
           decimal_read(&name, &id->pid) && *name++ == '-' &&
           decimal_read(&name, &id->start_ticks) &&
           (strcmp(name, PAGE_SUFFIX) == 0 || strcmp(name, PAGE_SUFFIX PAGE_UNFINISHED) == 0);
}

bool page_dir_default(unsigned index, char *path, size_t size_bytes)
{
    static const char *const folders[] = {"/dev/shm", "/tmp"};

    if (index >= sizeof folders / sizeof folders[0])
        return false;
    snprintf(path, size_bytes, "%s/gpucache-%ld", folders[index], (long)geteuid());
    return true;
}

/* The kernel follows a symbolic link before a slash or a dot. No function of the C library reads
 * the path: the thread sanitizer of a program sees those, but not the atomics that order us. */
static bool ends_in_name(const char *path)
{
    const char *last = path;

    for (const char *at = path; *at; at++)
        if (*at == '/')
            last = at + 1;
    return last[0] && !(last[0] == '.' && (!last[1] || (last[1] == '.' && !last[2])));
}

/* The folder above is not checked. If a process can exchange the directory there, it can only put
 * another one of this user's there, or one that the checks refuse. */
int page_dir_open(const char *path, const char **why)
{
    struct stat st;

    if (!ends_in_name(path)) {
        *why = "its name ends in a slash or a dot";
        errno = 0;
        return -1;
    }
    *why = "it cannot be opened";
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) {
        if (errno == ELOOP || errno == ENOTDIR) {
            *why = "it is a symbolic link, or no directory";
            errno = 0;
        }
        return -1;
    }
    *why = NULL;
    if (kernel_fstat(dir, &st))
        *why = "it cannot be examined";
    else if (st.st_uid != geteuid())
        *why = "it belongs to another user";
    else if (st.st_mode & 077)
        *why = "others may use it (its mode must be 0700)";
    if (!*why)
        return dir;
    close(dir);
    errno = 0;
    return -1;
}

/* The umask of the program may take rights of the owner. chmod would follow a symbolic link that
 * another process puts in the new directory's place. The kernel's link in /proc leads to what was
 * opened. */
static void allow_owner(const char *path)
{
    char file[16], link[PROC_TEXT_PATH_BYTES];
    struct stat st;
    int dir = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (dir < 0)
        return;
    snprintf(file, sizeof file, "fd/%d", dir);
    proc_text_own_path(link, file);
    if (!kernel_fstat(dir, &st) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
        (st.st_mode & 0700) != 0700)
        chmod(link, 0700);
    close(dir);
}

int page_dir_make(const char *path, const char **why)
{
    *why = "it cannot be made";
    if (!ends_in_name(path))
        return page_dir_open(path, why);
    if (!mkdir(path, 0700))
        allow_owner(path);
    else if (errno != EEXIST)
        return -1;
    return page_dir_open(path, why);
}

static bool is_process_gone(const struct page_id *id)
{
    uint64_t pid, start_ticks;
    char path[40];

    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", id->pid);
    if (read_start(path, &pid, &start_ticks))
        return start_ticks != id->start_ticks;
    return errno == ENOENT || errno == ESRCH;
}

/* A file without a state may be one that is being made at this moment. */
static bool is_a_day_old(int fd, const struct stat *st)
{
    uint64_t then_ns = 0;

    if (pread(fd, &then_ns, sizeof then_ns, offsetof(struct page, published_unix_ns)) !=
            (ssize_t)sizeof then_ns ||
        !then_ns)
        then_ns = (uint64_t)st->st_mtime * SEC_NS;
    return clock_unix_ns() > then_ns + DAY_NS;
}

static bool is_of_this_boot(int fd)
{
    unsigned char its[PAGE_BOOT_BYTES], own[PAGE_BOOT_BYTES];

    return page_boot_id(own) &&
           pread(fd, its, sizeof its, offsetof(struct page, boot_id)) == (ssize_t)sizeof its &&
           memcmp(its, own, sizeof own) == 0;
}

/* Rings: a thread that waits looks around and waits again. */
static bool has_waiter(int fd)
{
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return false;
    long woken = futex_wake(at + offsetof(struct page, doorbell), 1, FUTEX_OF_FILE);
    munmap(at, 4096);
    return woken > 0;
}

/* The process may have changed its user: then the file is not this user's, and remains. */
static bool is_stale(int dir, const char *name, const struct page_id *id,
                     const struct page_id *self)
{
    bool near = id->pid_namespace == self->pid_namespace, stale = false;
    struct stat st;

    if (near && !is_process_gone(id))
        return false;
    int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || kernel_fstat(fd, &st))
        return false;
    if (S_ISREG(st.st_mode) && st.st_uid == geteuid())
        stale = ((near && is_of_this_boot(fd)) || is_a_day_old(fd, &st)) && !has_waiter(fd);
    kernel_close_own(fd, &st);
    return stale;
}

void page_dir_clean(int dir, const struct page_id *self)
{
    char entries[1024];
    long got;
    struct stat opened;
    unsigned left = PAGE_CLEAN_MAX, looks = 16 * PAGE_CLEAN_MAX;
    struct page_id id;
    int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (again < 0 || kernel_fstat(again, &opened))
        return;
    while (left && looks && (got = kernel_getdents(again, entries, sizeof entries)) > 0)
        for (long at = 0; at < got && left && looks; looks--) {
            unsigned short length;
            const char *name = kernel_entry(entries + at, &length);

            at += length;
            if (page_id_parse(name, &id) && is_stale(dir, name, &id, self)) {
                unlinkat(dir, name, 0);
                left--;
            }
        }
    kernel_close_own(again, &opened);
}
