/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The types of option values, and one parser for each type of option. Every parser takes the whole
 * value and ignores blanks around it, but not around a path. It does not depend on the locale and
 * keeps errno. False, with *out unchanged: the value is not understood or out of range.
 */
#ifndef SHIM_PARSE_H
#define SHIM_PARSE_H

#include "pool/config.h"
#include "shim/option/number.h"
#include "shim/process/log.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    OPTION_DEVICES = 64,
    OPTION_GLOBS_MAX = 1024,
    OPTION_PLACE_BYTES = 256,
    OPTION_FRAMES_MOST = 64
};

struct option_bytes {
    struct option_size others;                 /* for all devices not named */
    uint64_t named;                            /* a bit for the ordinal of each named device */
    struct option_size device[OPTION_DEVICES]; /* the sizes of the named devices */
};

/* GPUCACHE_EMPTY_CACHE, a request or a policy. device and keep_bytes limit every flush. */
struct empty_cache {
    bool now;            /* flush once, at once */
    bool on_oom;         /* flush whenever the driver has no memory left */
    uint64_t every_ns;   /* flush at this interval; 0: no */
    int device;          /* ordinal, -1: all */
    uint64_t keep_bytes; /* idle memory to keep, on each device */
};

/* GPUCACHE_PARK. Any thread may read the words while they change. */
struct option_park {
    atomic_bool off;                   /* refuses each park */
    _Atomic uint64_t idle_ns, lend_ns; /* 0: not */
    _Atomic uint64_t retain_bytes;     /* of copies after a wake, at most */
};

/* Where and how to report. path "" is stderr; in a path %p stands for the process id. */
struct option_stats {
    bool at_exit;
    bool json;
    char path[PATH_MAX];
};

struct option_log {
    enum log_level level;
    char path[PATH_MAX]; /* "" is stderr */
};

struct option_path {
    char path[PATH_MAX]; /* absolute; "": none */
};

/* Where device memory goes in a park. */
struct option_place {
    char path[OPTION_PLACE_BYTES]; /* absolute; "": host memory */
};

/* GPUCACHE_TRACE_ON: when a trace is written. */
enum trace_on { TRACE_ON_START, TRACE_ON_OOM };

/* GPUCACHE_TRACE_STACKS. */
struct option_trace_stacks {
    unsigned frames;
    bool python; /* and as many of Python's */
};

struct option_dir {
    bool none;
    char path[PATH_MAX]; /* absolute; "": the default places */
};

struct option_globs {
    char list[OPTION_GLOBS_MAX]; /* patterns, separated by commas; "": none */
};

/* The word for each value of the types. */
extern const char *const parse_backing_words[];
extern const char *const parse_reuse_words[];
extern const char *const parse_trace_on_words[];

bool parse_SWITCH(const char *text, atomic_bool *out);
/* A time in nanoseconds (number_time). */
bool parse_SECONDS(const char *text, _Atomic uint64_t *out);
/* Sizes for all devices or single ones: 8G, 50%, none, 0=8G,1=50%. A device that the value does not
 * name keeps its size. "none" is 0 for BYTES. For LIMIT "none" and "unlimited" are no limit. */
bool parse_LIMIT(const char *text, struct option_bytes *out);
bool parse_BYTES(const char *text, struct option_bytes *out);
bool parse_BACKING(const char *text, enum pool_backing *out);
bool parse_REUSE(const char *text, enum pool_reuse *out);
bool parse_TRACE_ON(const char *text, enum trace_on *out);
bool parse_TRACE_STACKS(const char *text, struct option_trace_stacks *out);
bool parse_SIGNAL(const char *text, int *out);
bool parse_EMPTY_CACHE(const char *text, struct empty_cache *out);
bool parse_PARK(const char *text, struct option_park *out);
bool parse_STATS(const char *text, struct option_stats *out);
bool parse_LOG(const char *text, struct option_log *out);
/* A relative path starts at the present working directory. "none" means no file; a file of that
 * name is "./none". */
bool parse_PATH(const char *text, struct option_path *out);
/* The same where the path is a pattern (log_file_name). */
bool parse_PATTERN(const char *text, struct option_path *out);
/* The same for a folder. "none" means no folder at all. */
bool parse_DIR(const char *text, struct option_dir *out);
/* host, or a folder. */
bool parse_PLACE(const char *text, struct option_place *out);
/* Refuses "none", which could mean no pattern or no program. */
bool parse_GLOBS(const char *text, struct option_globs *out);

/* Does the name match one of the patterns (shell wildcards)? False for an empty list. */
bool parse_globs_match(const char *list, const char *name);

#endif
