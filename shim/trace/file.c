/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See file.h. The lock guards all variables here.
 */
#include "shim/trace/file.h"

#include "shim/process/cancel.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/trace/fast.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { LOCK_TRIES = 100, ALLOCATE_TRIES = 100 };

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static char file_name[PATH_MAX]; /* absolute: the program may change its folder */
static struct stat file_made;
static uint32_t num_chunks;
static bool broken = true;
static struct trace_header *file_header; /* mapped; stays until the next file */

static bool lock(void)
{
    return trace_lock(&file_lock, LOCK_TRIES);
}

/* Keeps errno. */
static void say_errno(char why[TRACE_WHY_BYTES], const char *what)
{
    int code = errno;
    char words[80];
    const char *reason = strerror_r(code, words, sizeof words); /* NULL: musl's, it is in words */
    snprintf(why, TRACE_WHY_BYTES, "%s: %s", what, reason ? reason : words);
    errno = code;
}

/* The absolute name. False: errno says why. */
static bool expand(const char *pattern, char *out, size_t size_bytes)
{
    size_t n = 0;
    if (pattern[0] != '/') {
        if (!getcwd(out, size_bytes))
            return false;
        n = strlen(out);
        out[n++] = '/'; /* in place of the NUL */
    }
    errno = ENAMETOOLONG;
    if (!log_file_name(pattern, out + n, size_bytes - n))
        return false;
    errno = EISDIR;
    return out[strlen(out) - 1] != '/';
}

/* The kernel would send SIGXFSZ to the program. */
static bool is_within_limit(off_t end)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        (rlim_t)end > most.rlim_cur) {
        errno = EFBIG;
        return false;
    }
    return true;
}

/* The program may close the descriptor, and get its number for a file of its own. */
static bool is_own(int fd)
{
    errno = EBADF;
    return kernel_is_own(fd, &file_made);
}

/* NULL: errno says why. */
static void *map_own(int fd, off_t start, size_t size_bytes, int flags)
{
    void *at = MAP_FAILED;
    if (is_own(fd))
        at = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, start);
    if (at == MAP_FAILED)
        return NULL;
    if (is_own(fd))
        return at;
    munmap(at, size_bytes);
    errno = EBADF;
    return NULL;
}

static bool put_own(int fd, const void *data, size_t size_bytes)
{
    return is_own(fd) && pwrite(fd, data, size_bytes, 0) == (ssize_t)size_bytes;
}

static bool put_header(int fd, const struct trace_header *header)
{
    if (file_header)
        munmap(file_header, TRACE_HEADER_BYTES);
    file_header = NULL;
    static const char zeroes[TRACE_HEADER_BYTES];
    if (is_within_limit(sizeof zeroes) && put_own(fd, zeroes, sizeof zeroes) &&
        put_own(fd, header, sizeof *header))
        file_header = map_own(fd, 0, TRACE_HEADER_BYTES, 0);
    return file_header != NULL;
}

/* Without a name `name` is the pattern. */
static bool find_name(const char *path, char name[PATH_MAX], char why[TRACE_WHY_BYTES])
{
    if (expand(path, name, PATH_MAX))
        return true;
    say_errno(why, "the file has no usable name");
    snprintf(name, PATH_MAX, "%s", path);
    return false;
}

static void say_not_made(char why[TRACE_WHY_BYTES])
{
    say_errno(why, errno == EEXIST ? "the file is there already" : "the file cannot be made");
}

static bool leads_to(const char *name, const struct stat *made)
{
    struct stat st;
    return !kernel_fstatat(AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW) && st.st_dev == made->st_dev &&
           st.st_ino == made->st_ino;
}

/* Its descriptor, its name, and what it is, by its name: the descriptor may be the program's by
 * now. -1: there is none. */
static int make_file(const char *path, char name[PATH_MAX], struct stat *made,
                     char why[TRACE_WHY_BYTES])
{
    if (!find_name(path, name, why))
        return -1;
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        say_not_made(why);
    else if (!kernel_fstatat(AT_FDCWD, name, made, AT_SYMLINK_NOFOLLOW))
        return fd;
    else
        say_errno(why, "the file is gone"); /* so whose the descriptor is nobody knows */
    return -1;
}

/* With the lock. */
static bool make_with_header(const char *path, const struct trace_header *header,
                             char why[TRACE_WHY_BYTES])
{
    broken = true;
    num_chunks = 0;
    int fd = make_file(path, file_name, &file_made, why);
    if (fd < 0)
        return false;
    bool made = put_header(fd, header);
    if (!made) {
        say_errno(why, "the file cannot be written");
        if (leads_to(file_name, &file_made))
            unlink(file_name);
    }
    kernel_close_own(fd, &file_made);
    broken = !made;
    return made;
}

bool trace_file_begin(const char *path, const struct trace_header *header,
                      char why[TRACE_WHY_BYTES])
{
    int saved_errno = errno, cancel = cancel_forbid();
    bool begun = false;
    snprintf(why, TRACE_WHY_BYTES, "another thread is making a file");
    if (lock()) {
        begun = make_with_header(path, header, why);
        pthread_mutex_unlock(&file_lock);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return begun;
}

/* A signal may interrupt it where the file is in memory. */
static int allocate(int fd, off_t start)
{
    int rc = EINTR;
    for (int i = 0; i < ALLOCATE_TRIES && rc == EINTR; i++)
        rc = is_own(fd) ? posix_fallocate(fd, start, TRACE_CHUNK_BYTES) : EBADF;
    return rc;
}

/* Maps the next chunk of the open file. NULL, with a code in errno and a sentence: it cannot. */
static void *map_next(int fd, char why[TRACE_WHY_BYTES])
{
    off_t start = TRACE_HEADER_BYTES + (off_t)num_chunks * TRACE_CHUNK_BYTES;
    errno = is_within_limit(start + TRACE_CHUNK_BYTES) ? allocate(fd, start) : EFBIG;
    if (errno) {
        say_errno(why, "there is no room for more of the file");
        return NULL;
    }
    void *chunk = map_own(fd, start, TRACE_CHUNK_BYTES, MAP_POPULATE);
    if (chunk)
        num_chunks++;
    else
        say_errno(why, "the file cannot be mapped");
    return chunk;
}

/* The next record may find it otherwise. */
static bool may_pass(int code)
{
    return code == EINTR || code == EMFILE || code == ENFILE || code == ENOMEM || code == EBADF;
}

/* What was opened is not the file. Returns EBADF if the program has the descriptor, else EEXIST. */
static int look_at_other(int fd, char why[TRACE_WHY_BYTES])
{
    struct stat st;
    snprintf(why, TRACE_WHY_BYTES, "another file has its name now");
    if (leads_to(file_name, &file_made))
        return EBADF;
    if (!kernel_fstatat(AT_FDCWD, file_name, &st, AT_SYMLINK_NOFOLLOW))
        kernel_close_own(fd, &st);
    return EEXIST;
}

/* With the lock. */
static void *map_chunk_of_file(char why[TRACE_WHY_BYTES])
{
    void *chunk = NULL;
    int code = 0;
    if (broken)
        return NULL;
    int fd = open(file_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        code = errno;
        say_errno(why, "the file cannot be opened any more");
    } else if (!kernel_is_own(fd, &file_made)) {
        code = look_at_other(fd, why);
    } else {
        chunk = map_next(fd, why);
        code = errno;
        kernel_close_own(fd, &file_made);
    }
    broken = !chunk && !may_pass(code);
    if (!broken)
        why[0] = '\0';
    return chunk;
}

void *trace_file_chunk(uint32_t *number, char why[TRACE_WHY_BYTES])
{
    int saved_errno = errno, cancel = cancel_forbid();
    void *chunk = NULL;
    why[0] = '\0';
    if (lock()) {
        *number = num_chunks;
        chunk = map_chunk_of_file(why);
        pthread_mutex_unlock(&file_lock);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return chunk;
}

void trace_file_chunk_done(void *chunk)
{
    int saved_errno = errno;
    munmap(chunk, TRACE_CHUNK_BYTES);
    errno = saved_errno;
}

struct trace_header *trace_file_header(void)
{
    return file_header;
}

const char *trace_file_name(void)
{
    return file_name;
}

/* --- a file that is written as a whole -------------------------------------------------------- */

static char copy_name[PATH_MAX];
static struct stat copy_made;
static int copy_fd = -1;

bool trace_copy_may_begin(const char *path, char why[TRACE_WHY_BYTES])
{
    static char name[PATH_MAX];
    struct stat st;
    if (!find_name(path, name, why))
        return false;
    char *slash = strrchr(name, '/');
    bool may = false;
    if (!kernel_fstatat(AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW)) {
        errno = EEXIST;
    } else if (errno == ENOENT) {
        *slash = '\0';
        may = access(*name ? name : "/", W_OK | X_OK) == 0;
        *slash = '/';
    }
    if (!may)
        say_not_made(why);
    return may;
}

bool trace_copy_begin(const char *path, char why[TRACE_WHY_BYTES])
{
    copy_fd = make_file(path, copy_name, &copy_made, why);
    return copy_fd >= 0;
}

/* The program may have closed the descriptor, and have another file there. */
bool trace_copy_put(uint64_t offset, const void *data, size_t size_bytes, char why[TRACE_WHY_BYTES])
{
    const char *from = data;
    if (!is_within_limit((off_t)(offset + size_bytes))) {
        say_errno(why, "there is no room for the file");
        return false;
    }
    while (size_bytes) {
        ssize_t put = -1;
        errno = EBADF;
        if (kernel_is_own(copy_fd, &copy_made))
            put = pwrite(copy_fd, from, size_bytes, (off_t)offset);
        if (put <= 0 && errno != EINTR) {
            say_errno(why, "the file cannot be written");
            return false;
        }
        size_t done = put > 0 ? (size_t)put : 0;
        from += done;
        offset += done;
        size_bytes -= done;
    }
    return true;
}

void trace_copy_end(bool keep)
{
    if (!keep && copy_fd >= 0 && leads_to(copy_name, &copy_made))
        unlink(copy_name);
    kernel_close_own(copy_fd, &copy_made);
    copy_fd = -1;
}

const char *trace_copy_name(void)
{
    return copy_name;
}
