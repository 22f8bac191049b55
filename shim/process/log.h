/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The library's messages: one line each, `gpucache: level: text`, to stderr or to a file. Messages
 * less important than the level that is set are not written (GPUCACHE_LOG; warnings by default).
 *
 * Any thread may log, but no signal handler. Keeps errno, takes no lock, and does not disturb the
 * process:
 * 1. The library holds no descriptor between two lines.
 * 2. It writes to fd 2 only while that is the same file as when the log was configured or first
 *    used.
 * 3. No SIGPIPE, SIGXFSZ or SIGTTOU reaches the program.
 * 4. A thread waits 100 ms for a full pipe, then drops the line.
 * 5. It does not write through a symbolic link, or to a file with a second name, where others can
 *    make names in the folder. A folder is safe if root or this user owns it and no other user or
 *    group can write to it.
 * 6. The first line that could not be written to a file goes to stderr, with a line that names the
 *    file.
 */
#ifndef SHIM_LOG_H
#define SHIM_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_OFF, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
/* Their names in GPUCACHE_LOG. */
extern const char *const log_level_words[];

/* The name of a file by its pattern: %p becomes the process id, and %% becomes %. Any other percent
 * sign stays. False: there is no room. */
bool log_file_name(const char *pattern, char *out, size_t size_bytes);

/* From now on lines up to `level` go to the file `path` (a pattern). If `path` is NULL or "", they
 * go to stderr. Other threads may log meanwhile, but only one may configure. A path stays in memory
 * for the life of the process, so there may be 64 different ones. False, with the present target:
 * there were more, or no host memory. Keeps errno. */
bool log_configure(enum log_level level, const char *path);
bool log_wants(enum log_level level);

/* One line; the format has no newline. Cut after 1000 bytes; control characters become '?'. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
    do {                                                                                           \
        if (log_wants(LOG_LEVEL_DEBUG))                                                            \
            log_line(LOG_LEVEL_DEBUG, __VA_ARGS__);                                                \
    } while (0)

/* A line that this place in the code writes at most once per process. */
#define log_once(level, ...)                                                                       \
    do {                                                                                           \
        static atomic_flag log_done_ = ATOMIC_FLAG_INIT;                                           \
        if (log_wants(level) && !atomic_flag_test_and_set(&log_done_))                             \
            log_line(level, __VA_ARGS__);                                                          \
    } while (0)

/* Is `path` (a pattern) a regular file, or the name of none? False for stderr, links, devices and
 * pipes. */
bool log_is_file(const char *path);

/* Writes a whole text to the file `path` (a pattern), whose old contents go, or to stderr if
 * `path` is NULL or "". Does not disturb the process either, but waits up to a second for a full
 * pipe. False: not all of it was written. */
bool log_put(const char *path, const char *text, size_t size_bytes);

#endif
