/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See parse.h: the grammar of every type of option. The list of options is in
 * shim/option/options.def. No state, no lock.
 */
#include "shim/option/parse.h"

#include "shim/option/word.h"
#include "shim/process/clock.h"
#include "shim/process/decimal.h"

#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Moves *text behind the number and the blanks that follow. */
static bool read_device(const char **text, unsigned *out)
{
    uint64_t n;

    if (!decimal_read(text, &n) || n >= OPTION_DEVICES)
        return false;
    *text = word_skip_blanks(*text);
    *out = (unsigned)n;
    return true;
}

bool parse_SWITCH(const char *text, atomic_bool *out)
{
    char v[WORD_ITEM_BYTES];

    if (!word_only_item(text, v))
        return false;
    bool off = word_is_off(v);
    if (!off && !word_is(v, "1") && !word_is(v, "on") && !word_is(v, "yes") && !word_is(v, "true"))
        return false;
    *out = !off;
    return true;
}

bool parse_SECONDS(const char *text, _Atomic uint64_t *out)
{
    uint64_t ns;

    if (!number_time(text, &ns))
        return false;
    *out = ns;
    return true;
}

/* A size, or a word for none. */
static bool parse_size_or_none(const char *text, bool is_limit, struct option_size *out)
{
    if (!word_is(text, "none") && !(is_limit && word_is(text, "unlimited")))
        return number_size(text, out);
    *out = (struct option_size){.bytes = is_limit ? UINT64_MAX : 0};
    return true;
}

static bool parse_sizes(const char *text, bool is_limit, struct option_bytes *out)
{
    struct option_size size[OPTION_DEVICES], others;
    uint64_t named = 0;
    bool has_others = false, bad;
    char item[WORD_ITEM_BYTES];

    while (word_next_item(&text, item, &bad)) {
        const char *p = item;
        unsigned device;

        if (!strchr(item, '=')) {
            if (has_others || !parse_size_or_none(p, is_limit, &others))
                return false;
            has_others = true;
        } else {
            if (!read_device(&p, &device) || *p != '=' || (named >> device & 1))
                return false;
            if (!parse_size_or_none(word_skip_blanks(p + 1), is_limit, &size[device]))
                return false;
            named |= UINT64_C(1) << device;
        }
    }
    if (bad)
        return false;
    if (has_others) {
        out->others = others;
        out->named = 0;
    }
    out->named |= named;
    for (unsigned i = 0; i < OPTION_DEVICES; i++)
        if (named >> i & 1)
            out->device[i] = size[i];
    return true;
}

bool parse_BYTES(const char *text, struct option_bytes *out)
{
    return parse_sizes(text, false, out);
}

bool parse_LIMIT(const char *text, struct option_bytes *out)
{
    return parse_sizes(text, true, out);
}

const char *const parse_backing_words[] = {[BACKING_AUTO] = "auto",
                                           [BACKING_ARENA] = "arena",
                                           [BACKING_SEGMENT] = "segment",
                                           [BACKING_DRIVER] = "driver"};
const char *const parse_reuse_words[] = {
    [REUSE_AUTO] = "auto", [REUSE_ORDER] = "order", [REUSE_READY] = "ready", [REUSE_WAIT] = "wait"};
const char *const parse_trace_on_words[] = {[TRACE_ON_START] = "start", [TRACE_ON_OOM] = "oom"};

enum {
    NUM_BACKINGS = sizeof parse_backing_words / sizeof parse_backing_words[0],
    NUM_REUSES = sizeof parse_reuse_words / sizeof parse_reuse_words[0],
    NUM_TRACE_ONS = sizeof parse_trace_on_words / sizeof parse_trace_on_words[0]
};

/* The index of the value in a list of words. -1: it is not there. */
static int find_word(const char *text, const char *const words[], size_t num_words)
{
    char v[WORD_ITEM_BYTES];

    for (size_t i = 0; word_only_item(text, v) && i < num_words; i++)
        if (word_is(v, words[i]))
            return (int)i;
    return -1;
}

bool parse_BACKING(const char *text, enum pool_backing *out)
{
    int i = find_word(text, parse_backing_words, NUM_BACKINGS);

    if (i >= 0)
        *out = (enum pool_backing)i;
    return i >= 0;
}

bool parse_REUSE(const char *text, enum pool_reuse *out)
{
    int i = find_word(text, parse_reuse_words, NUM_REUSES);

    if (i >= 0)
        *out = (enum pool_reuse)i;
    return i >= 0;
}

bool parse_TRACE_ON(const char *text, enum trace_on *out)
{
    int i = find_word(text, parse_trace_on_words, NUM_TRACE_ONS);

    if (i >= 0)
        *out = (enum trace_on)i;
    return i >= 0;
}

bool parse_TRACE_STACKS(const char *text, struct option_trace_stacks *out)
{
    struct option_trace_stacks s = {0, false};
    bool bad, first = true;
    char item[WORD_ITEM_BYTES];
    const char *p;
    uint64_t frames;

    for (; word_next_item(&text, item, &bad); first = false) {
        p = item;
        if (first && decimal_read(&p, &frames) && !*p && frames <= OPTION_FRAMES_MOST)
            s.frames = (unsigned)frames;
        else if (!first && s.frames && !s.python && word_is(item, "python"))
            s.python = true;
        else if (!first || !word_is_off(item))
            return false;
    }
    if (!bad)
        *out = s;
    return !bad;
}

bool parse_SIGNAL(const char *text, int *out)
{
    char v[WORD_ITEM_BYTES];
    uint64_t n = 0;

    if (!word_only_item(text, v))
        return false;
    const char *p = word_skip(v, "SIG") ? v + 3 : v;
    if (word_is_off(v)) {
        *out = 0;
    } else if (word_is(p, "USR1")) {
        *out = SIGUSR1;
    } else if (word_is(p, "USR2")) {
        *out = SIGUSR2;
    } else if ((p = word_skip(p, "RTMIN")) != NULL) {
        if (*p == '+') {
            p++;
            if (!decimal_read(&p, &n))
                return false;
        }
        if (*p || n > (uint64_t)(SIGRTMAX - SIGRTMIN))
            return false;
        *out = SIGRTMIN + (int)n;
    } else {
        return false;
    }
    return true;
}

bool parse_EMPTY_CACHE(const char *text, struct empty_cache *out)
{
    struct empty_cache e = {.device = -1};
    struct option_size keep;
    bool bad, off = false;
    unsigned num_items = 0, device;
    char item[WORD_ITEM_BYTES];
    const char *p;

    for (; word_next_item(&text, item, &bad); num_items++) {
        if (word_is_off(item)) {
            off = true;
        } else if (word_is(item, "1") || word_is(item, "all") || word_is(item, "on")) {
            e.now = true;
        } else if (word_is(item, "oom")) {
            e.on_oom = true;
        } else if ((p = word_skip(item, "every:")) != NULL) {
            if (!number_time(p, &e.every_ns) || e.every_ns < MS_NS)
                return false;
        } else if ((p = word_skip(item, "device=")) != NULL) {
            if (!read_device(&p, &device) || *p)
                return false;
            e.device = (int)device;
        } else if ((p = word_skip(item, "keep=")) != NULL) {
            if (!number_size(p, &keep) || keep.is_share)
                return false;
            e.keep_bytes = keep.bytes;
        } else {
            return false;
        }
    }
    if (bad || (off && num_items > 1))
        return false;
    if (!off && !e.on_oom && !e.every_ns)
        e.now = true;
    *out = e;
    return true;
}

bool parse_PARK(const char *text, struct option_park *out)
{
    uint64_t idle_ns = 0, lend_ns = 0;
    struct option_size retain = {0};
    bool bad, off = false;
    unsigned num_items = 0;
    char item[WORD_ITEM_BYTES];
    const char *p;

    for (; word_next_item(&text, item, &bad); num_items++) {
        if (word_is_off(item)) {
            off = true;
        } else if ((p = word_skip(item, "idle:")) != NULL) {
            if (!number_time(p, &idle_ns) || idle_ns < MS_NS)
                return false;
        } else if ((p = word_skip(item, "lend:")) != NULL) {
            if (!number_time(p, &lend_ns) || lend_ns < SEC_NS)
                return false;
        } else if ((p = word_skip(item, "retain:")) != NULL) {
            if (!number_size(p, &retain) || retain.is_share)
                return false;
        } else if (!word_is(item, "ask")) {
            return false;
        }
    }
    if (bad || (off && num_items > 1))
        return false;
    out->off = off;
    out->idle_ns = idle_ns;
    out->lend_ns = lend_ns;
    out->retain_bytes = retain.bytes;
    return true;
}

/* Copies a path and makes it absolute. False, with `out` unchanged: it is too long. In a pattern
 * (log_file_name) a percent sign of the working directory is doubled. */
static bool absolute_path(const char *path, bool is_pattern, char out[PATH_MAX])
{
    char *cwd = NULL;
    size_t used = 0, n = strlen(path), room = 0;
    int saved_errno = errno;

    if (path[0] != '/') {
        cwd = getcwd(NULL, 0);
        for (const char *p = cwd; p && *p; p++)
            room += is_pattern && *p == '%' ? 2 : 1;
        room++; /* for a slash */
    }
    bool fits = n && room + n < PATH_MAX && (path[0] == '/' || (cwd && cwd[0] == '/'));
    if (fits) {
        for (const char *p = cwd; p && *p; p++) {
            out[used++] = *p;
            if (is_pattern && *p == '%')
                out[used++] = '%';
        }
        if (used && out[used - 1] != '/')
            out[used++] = '/';
        memcpy(out + used, path, n + 1);
    }
    free(cwd);
    errno = saved_errno;
    return fits;
}

static bool path_or_none(const char *text, bool is_pattern, struct option_path *out)
{
    if (!word_is(text, "none"))
        return absolute_path(text, is_pattern, out->path);
    out->path[0] = '\0';
    return true;
}

bool parse_PATH(const char *text, struct option_path *out)
{
    return path_or_none(text, false, out);
}

bool parse_PATTERN(const char *text, struct option_path *out)
{
    return path_or_none(text, true, out);
}

/* Slashes, and dots behind them: they name the same directory, but the kernel would follow a
 * symbolic link before them. */
static void strip_tail(char *path)
{
    size_t n = strlen(path);

    while (n > 1 && (path[n - 1] == '/' || (path[n - 1] == '.' && path[n - 2] == '/')))
        path[--n] = '\0';
}

bool parse_DIR(const char *text, struct option_dir *out)
{
    bool none = word_is(text, "none");

    if (!none && !absolute_path(text, false, out->path))
        return false;
    if (!none)
        strip_tail(out->path);
    out->none = none;
    if (none)
        out->path[0] = '\0';
    return true;
}

bool parse_PLACE(const char *text, struct option_place *out)
{
    if (word_is(text, "host")) {
        out->path[0] = '\0';
        return true;
    }
    size_t n = strlen(text);
    if (text[0] != '/' || n >= sizeof out->path)
        return false;
    memcpy(out->path, text, n + 1);
    return true;
}

/* The path behind a word and a colon. False: there is none. */
static bool path_behind(const char *text, char out[PATH_MAX])
{
    return *text == ':' && absolute_path(text + 1, true, out);
}

bool parse_STATS(const char *text, struct option_stats *out)
{
    const char *p;
    bool json = false;
    size_t n;

    if (word_is_off(text)) {
        out->at_exit = out->json = false;
        out->path[0] = '\0';
        return true;
    }
    if ((p = word_skip(text, "exit-json")) != NULL)
        json = true;
    else if (!(p = word_skip(text, "exit")))
        return false;
    if (!*p)
        out->path[0] = '\0';
    else if (!path_behind(p, out->path))
        return false;
    n = strlen(out->path);
    out->at_exit = true;
    out->json = json || (n > 5 && word_is(out->path + n - 5, ".json"));
    return true;
}

bool parse_LOG(const char *text, struct option_log *out)
{
    static const struct {
        const char *word;
        enum log_level level;
    } levels[] = {{"off", LOG_LEVEL_OFF},     {"none", LOG_LEVEL_OFF},     {"0", LOG_LEVEL_OFF},
                  {"error", LOG_LEVEL_ERROR}, {"warning", LOG_LEVEL_WARN}, {"warn", LOG_LEVEL_WARN},
                  {"info", LOG_LEVEL_INFO},   {"debug", LOG_LEVEL_DEBUG}};

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        const char *p = word_skip(text, levels[i].word);

        if (!p || (*p && *p != ':'))
            continue;
        if (!*p)
            out->path[0] = '\0';
        else if (!path_behind(p, out->path))
            return false;
        out->level = levels[i].level;
        return true;
    }
    return false;
}

bool parse_GLOBS(const char *text, struct option_globs *out)
{
    const char *rest = text;
    char item[WORD_ITEM_BYTES];
    bool bad;

    while (word_next_item(&rest, item, &bad))
        ;
    if (bad || strlen(text) >= sizeof out->list || word_is(text, "none"))
        return false;
    strcpy(out->list, text);
    return true;
}

bool parse_globs_match(const char *list, const char *name)
{
    char item[WORD_ITEM_BYTES];
    bool bad;

    while (word_next_item(&list, item, &bad))
        if (fnmatch(item, name, 0) == 0)
            return true;
    return false;
}
