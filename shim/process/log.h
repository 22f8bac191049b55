/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The library's few words to its user: one line each, `gpucache: level: text`, to stderr or a file,
 * by write(2). Silent below the level that is set (warnings, unless GPUCACHE_LOG says otherwise).
 *
 * Keeps errno and never disturbs the process: no descriptor is held between two lines; fd 2 is
 * written to only while it is the file that it was when the log was configured or first used; no
 * SIGPIPE or SIGXFSZ reaches the program; a full pipe is waited for 100 ms, then the line is
 * dropped. No file is written through a symbolic link, nor one with a second name, unless only its
 * owner, who is this user or root, can make names in its folder. The first line that a file does
 * not take goes to stderr, with the reason why it is there. Any thread; not in a signal handler.
 * Takes no lock.
 */
#ifndef SHIM_LOG_H
#define SHIM_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_OFF, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* From now on lines up to `level` go to the file `path`, in which %p stands for the process id, or
 * to stderr if it is NULL or "". To be called before other threads log. */
void log_configure(enum log_level level, const char *path);
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

/* A line that this place in the code writes at most once in the life of the process. */
#define log_once(level, ...)                                                                       \
    do {                                                                                           \
        static atomic_flag log_done_ = ATOMIC_FLAG_INIT;                                           \
        if (log_wants(level) && !atomic_flag_test_and_set(&log_done_))                             \
            log_line(level, __VA_ARGS__);                                                          \
    } while (0)

/* A whole text to the file `path` (made anew, %p as above), or to stderr if NULL or "", with the
 * same manners; a full pipe is waited for at most a second in all. False if not all of it was
 * written. */
bool log_put(const char *path, const char *text, size_t size_bytes);

#endif
