/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See log.h. Holds the log's level and target, and the identity of stderr. No lock: the target is
 * one word, and what it points to is never written or freed.
 */
#include "shim/process/log.h"

#include "shim/process/clock.h"
#include "shim/process/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATHS_MAX = 64, LINE_MAX_BYTES = 1000, LINE_WAIT_MS = 100, TEXT_WAIT_MS = 1000 };

const char *const log_level_words[] = {[LOG_LEVEL_OFF] = "off",
                                       [LOG_LEVEL_ERROR] = "error",
                                       [LOG_LEVEL_WARN] = "warn",
                                       [LOG_LEVEL_INFO] = "info",
                                       [LOG_LEVEL_DEBUG] = "debug"};

static _Atomic int log_level_now = LOG_LEVEL_WARN;
static atomic_flag complained = ATOMIC_FLAG_INIT; /* about a file that cannot be written */
static char *paths[PATHS_MAX]; /* all that were ever set, as another thread may be using one */
static _Atomic(const char *) log_path = "";

/* The file that was stderr at the first look. A program may close fd 2 and get the same number for
 * a file of its own. A message would damage that file. */
enum { STDERR_UNSEEN, STDERR_LOOKING, STDERR_OPEN, STDERR_CLOSED };
static _Atomic int stderr_seen = STDERR_UNSEEN;
static dev_t stderr_dev;
static ino_t stderr_ino;

static void stderr_look(void)
{
    int unseen = STDERR_UNSEEN;
    struct stat st;

    if (!atomic_compare_exchange_strong(&stderr_seen, &unseen, STDERR_LOOKING))
        return;
    if (kernel_fstat(STDERR_FILENO, &st)) {
        atomic_store(&stderr_seen, STDERR_CLOSED);
        return;
    }
    stderr_dev = st.st_dev;
    stderr_ino = st.st_ino;
    atomic_store(&stderr_seen, STDERR_OPEN);
}

static bool stderr_is_ours(void)
{
    struct stat st;

    stderr_look();
    return atomic_load(&stderr_seen) == STDERR_OPEN && !kernel_fstat(STDERR_FILENO, &st) &&
           st.st_dev == stderr_dev && st.st_ino == stderr_ino;
}

/* Keeps the effects of a failed write from the program's thread that makes it. */
struct quiet {
    int saved_errno;
    int cancel_state;
    sigset_t mask, pending;
    bool broken; /* a write failed and may have raised a signal */
};

static void quiet_begin(struct quiet *q)
{
    sigset_t block;

    q->saved_errno = errno;
    q->broken = false;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &q->cancel_state);
    sigemptyset(&block);
    sigaddset(&block, SIGPIPE); /* the reader has gone */
    sigaddset(&block, SIGXFSZ); /* RLIMIT_FSIZE */
    sigaddset(&block, SIGTTOU); /* `stty tostop` would stop a background process */
    sigemptyset(&q->pending);
    sigpending(&q->pending);
    pthread_sigmask(SIG_BLOCK, &block, &q->mask);
}

static void quiet_end(struct quiet *q)
{
    static const int raised[] = {SIGPIPE, SIGXFSZ};
    const struct timespec at_once = {0, 0};
    sigset_t one;

    for (size_t i = 0; q->broken && i < sizeof raised / sizeof raised[0]; i++) {
        if (sigismember(&q->pending, raised[i]))
            continue;
        sigemptyset(&one);
        sigaddset(&one, raised[i]);
        sigtimedwait(&one, NULL, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &q->mask, NULL);
    pthread_setcancelstate(q->cancel_state, NULL);
    errno = q->saved_errno;
}

/* After a poll a write of at most PIPE_BUF bytes never blocks on a pipe, even if the descriptor is
 * a blocking one. */
static bool put_fd(struct quiet *q, int fd, const char *text, size_t size_bytes, int wait_ms)
{
    int64_t deadline_ms = clock_now_ms() + wait_ms;

    while (size_bytes > 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int64_t left_ms = deadline_ms - clock_now_ms();
        ssize_t n = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);

        if (n < 0 && errno == EINTR && left_ms > 0)
            continue;
        if (n <= 0)
            return false;
        n = write(fd, text, size_bytes < PIPE_BUF ? size_bytes : PIPE_BUF);
        if (n < 0 && (errno == EINTR || errno == EAGAIN) && left_ms > 0)
            continue;
        if (n <= 0) {
            q->broken = errno == EPIPE || errno == EFBIG;
            return false;
        }
        text += n;
        size_bytes -= (size_t)n;
    }
    return true;
}

bool log_file_name(const char *pattern, char *out, size_t size_bytes)
{
    size_t used = 0;

    for (; *pattern; pattern++) {
        char pid[16] = {*pattern, 0};

        if (pattern[0] == '%' && pattern[1] == 'p') {
            snprintf(pid, sizeof pid, "%ld", (long)getpid());
            pattern++;
        } else if (pattern[0] == '%' && pattern[1] == '%') {
            pattern++;
        }
        size_t n = strlen(pid);
        if (used + n >= size_bytes)
            return false;
        memcpy(out + used, pid, n);
        used += n;
    }
    out[used] = '\0';
    return true;
}

/* Only root and the user of this process can make names in the folder. */
static bool is_private_folder(int folder)
{
    struct stat st;

    return !kernel_fstat(folder, &st) && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           !(st.st_mode & (S_IWGRP | S_IWOTH));
}

enum fashion { ADD, ANEW };

/* In a folder such as /tmp others can make names. There a name may be a symbolic link, or a second
 * name of one of the user's files. The library writes to neither there. It holds the folder open
 * meanwhile, because the folder's path may lead elsewhere the next moment. A file behind a link
 * (/dev/stdout) may be in use, so it is not truncated. With O_NONBLOCK a FIFO without a reader is
 * an error instead of a wait. */
static int open_in(int folder, const char *name, enum fashion fashion)
{
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    int fd = openat(folder, name, flags | O_NOFOLLOW | (fashion == ADD ? O_APPEND : 0), 0666);
    struct stat st;

    if (fd < 0)
        return errno == ELOOP && is_private_folder(folder)
                   ? openat(folder, name, flags | O_APPEND, 0666)
                   : -1;
    if (kernel_fstat(fd, &st) ||
        (S_ISREG(st.st_mode) && st.st_nlink > 1 && !is_private_folder(folder)) ||
        (S_ISREG(st.st_mode) && fashion == ANEW && ftruncate(fd, 0))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* `path` is absolute. The function changes it. */
static int open_path(char *path, enum fashion fashion)
{
    char *name = strrchr(path, '/');
    int folder, fd;

    if (!name)
        return -1;
    *name++ = '\0';
    folder = open(*path ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -1;
    fd = open_in(folder, name, fashion);
    close(folder);
    return fd;
}

/* The library opens the file for each text and closes it again. A program may close every
 * descriptor and open files of its own under the same numbers. The name is on the heap, because a
 * thread of the program may have a small stack. */
static bool put_whole(const char *path, enum fashion fashion, const char *text, size_t size_bytes,
                      int wait_ms)
{
    struct quiet q;
    bool done = false;

    quiet_begin(&q);
    /* Opening /dev/stderr would make a new file description, which writes from the file's start. */
    if (!path || !path[0] || strcmp(path, "/dev/stderr") == 0) {
        done = stderr_is_ours() && put_fd(&q, STDERR_FILENO, text, size_bytes, wait_ms);
    } else {
        char *name = malloc(PATH_MAX);
        int fd = name && log_file_name(path, name, PATH_MAX) ? open_path(name, fashion) : -1;
        free(name);
        if (fd >= 0) {
            done = put_fd(&q, fd, text, size_bytes, wait_ms);
            close(fd);
        }
    }
    quiet_end(&q);
    return done;
}

/* The remembered copy of a path. NULL: there is no room for another. */
static const char *remember_path(const char *path)
{
    size_t i = 0;

    if (!path || !path[0])
        return "";
    while (i < PATHS_MAX && paths[i] && strcmp(paths[i], path) != 0)
        i++;
    if (i < PATHS_MAX && !paths[i])
        paths[i] = strdup(path);
    return i < PATHS_MAX ? paths[i] : NULL;
}

bool log_configure(enum log_level level, const char *path)
{
    int saved_errno = errno;
    const char *target = remember_path(path);

    stderr_look();
    if (target) {
        if (atomic_exchange(&log_path, target) != target)
            atomic_flag_clear(&complained);
        atomic_store(&log_level_now, (int)level);
    }
    errno = saved_errno;
    return target != NULL;
}

bool log_wants(enum log_level level)
{
    return level != LOG_LEVEL_OFF &&
           (int)level <= atomic_load_explicit(&log_level_now, memory_order_relaxed);
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const words[] = {"", "error", "warning", "info", "debug"};
    const char *path = atomic_load_explicit(&log_path, memory_order_acquire);
    int saved_errno = errno;
    char line[LINE_MAX_BYTES + 1];
    va_list args;

    if (!log_wants(level))
        return;
    int head = snprintf(line, sizeof line, "gpucache: %s: ", words[level]);
    va_start(args, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head, format, args);
    va_end(args);
    if (body >= 0) {
        size_t n = (size_t)head + (size_t)body;

        if (n > sizeof line - 1)
            n = sizeof line - 1;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)line[i] < ' ' || line[i] == 127)
                line[i] = '?';
        line[n] = '\n'; /* takes the place of the NUL */
        if (!put_whole(path, ADD, line, n + 1, LINE_WAIT_MS) && path[0] &&
            !atomic_flag_test_and_set(&complained)) {
            /* A user without the expected file looks at stderr. */
            put_whole(NULL, ADD, line, n + 1, LINE_WAIT_MS);
            n = (size_t)snprintf(line, sizeof line,
                                 "gpucache: warning: the log cannot be written to %.900s: name a "
                                 "file in a folder of your own\n",
                                 path);
            put_whole(NULL, ADD, line, n, LINE_WAIT_MS);
        }
    }
    errno = saved_errno;
}

bool log_is_file(const char *path)
{
    int saved_errno = errno;
    char *name = malloc(PATH_MAX);
    struct stat st;
    bool is = name && path[0] && log_file_name(path, name, PATH_MAX) &&
              (kernel_fstatat(AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW) ? errno == ENOENT
                                                                        : S_ISREG(st.st_mode));

    free(name);
    errno = saved_errno;
    return is;
}

bool log_put(const char *path, const char *text, size_t size_bytes)
{
    return put_whole(path, ANEW, text, size_bytes, TEXT_WAIT_MS);
}
