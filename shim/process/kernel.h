/* SPDX-License-Identifier: BSD-2-Clause
 *
 * System calls without the C library's functions. Those functions have symbol versions of the
 * building machine: GLIBC_2.33 for fstat and stat, GLIBC_2.30 for gettid, GLIBC_2.25 for
 * getrandom. If the running machine's C library lacked the version, every program would end at its
 * start. On machines with a CUDA driver (64 bits) the kernel's struct stat is that of the C
 * library. All set errno.
 */
#ifndef SHIM_KERNEL_H
#define SHIM_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static inline int kernel_fstat(int fd, struct stat *st)
{
    return (int)syscall(SYS_fstat, fd, st);
}

static inline int kernel_fstatat(int folder, const char *name, struct stat *st, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, name, st, flags);
}

static inline pid_t kernel_gettid(void)
{
    return (pid_t)syscall(SYS_gettid);
}

static inline ssize_t kernel_getrandom(void *out, size_t size_bytes)
{
    return (ssize_t)syscall(SYS_getrandom, out, size_bytes, 0);
}

/* Is it still the descriptor of *opened, which is from fstat right after the open? The program may
 * have closed it meanwhile, and may have a file of its own under the number. */
static inline bool kernel_is_own(int fd, const struct stat *opened)
{
    struct stat st;
    return !kernel_fstat(fd, &st) && st.st_dev == opened->st_dev && st.st_ino == opened->st_ino;
}

/* Closes it if so. The check and the close are two calls, less than a microsecond apart. If a
 * program closes all descriptors and opens a file between them, it still loses that file. */
static inline void kernel_close_own(int fd, const struct stat *opened)
{
    if (kernel_is_own(fd, opened))
        close(fd);
}

/* Reads entries of a directory. Returns the bytes; 0: there are no more. */
static inline long kernel_getdents(int folder, char *entries, size_t size_bytes)
{
    return syscall(SYS_getdents64, folder, entries, size_bytes);
}

/* The name of the entry at `at` (struct linux_dirent64: inode, offset, length, type, name). *length
 * is that of the entry. */
static inline const char *kernel_entry(const char *at, unsigned short *length)
{
    memcpy(length, at + 16, sizeof *length);
    return at + 19;
}

#endif
