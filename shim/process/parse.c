/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See parse.h: the grammar of every type of option. The list of options is in
 * shim/process/options.def. No state, no lock.
 */
#include "shim/process/parse.h"

#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ITEM_MAX = 256 };

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
#define MS UINT64_C(1000000)
#define SEC (1000 * MS)
#define MILLION UINT64_C(1000000)

/* The functions of ctype.h and strcasecmp depend on the locale. */
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The rest of text behind the word. NULL: text does not begin with it. */
static const char *skip_word(const char *text, const char *word)
{
    for (; *word; text++, word++)
        if (lower(*text) != lower(*word))
            return NULL;
    return text;
}

static bool is_word(const char *text, const char *word)
{
    const char *rest = skip_word(text, word);

    return rest && !*rest;
}

static bool is_off(const char *text)
{
    return is_word(text, "0") || is_word(text, "off") || is_word(text, "no") ||
           is_word(text, "none") || is_word(text, "false");
}

/* Copies the next item of a list without the blanks around it, and moves *text behind its comma.
 * False: the list is at its end; or, with *bad set, the item is empty or too long. */
static bool next_item(const char **text, char item[ITEM_MAX], bool *bad)
{
    const char *start = *text;

    *bad = false;
    if (!start)
        return false;
    const char *end = strchr(start, ',');
    *text = end ? end + 1 : NULL;
    if (!end)
        end = start + strlen(start);
    while (start < end && is_blank(*start))
        start++;
    while (end > start && is_blank(end[-1]))
        end--;
    if (start == end || end - start >= ITEM_MAX) {
        *bad = true;
        return false;
    }
    memcpy(item, start, (size_t)(end - start));
    item[end - start] = '\0';
    return true;
}

/* The whole value is one item. False: it has a comma. */
static bool only_item(const char *text, char item[ITEM_MAX])
{
    bool bad;

    return next_item(&text, item, &bad) && !text;
}

/* A decimal number, with its fraction in millionths (further digits are dropped). */
struct number {
    uint64_t whole;
    uint64_t millionths;
};

static bool read_number(const char **text, bool fraction, struct number *out)
{
    const char *p = *text;
    struct number v = {0, 0};
    uint64_t scale = MILLION;

    if (!is_digit(*p))
        return false;
    for (; is_digit(*p); p++) {
        if (__builtin_mul_overflow(v.whole, 10, &v.whole) ||
            __builtin_add_overflow(v.whole, (uint64_t)(*p - '0'), &v.whole))
            return false;
    }
    if (fraction && *p == '.' && is_digit(p[1])) {
        for (p++; is_digit(*p); p++) {
            scale /= 10;
            v.millionths += scale * (uint64_t)(*p - '0');
        }
    }
    while (is_blank(*p))
        p++;
    *text = p;
    *out = v;
    return true;
}

/* unit is at most TIB or an hour in nanoseconds, so its product with millionths fits. */
static bool scale_number(const struct number *v, uint64_t unit, uint64_t *out)
{
    uint64_t whole;

    return !__builtin_mul_overflow(v->whole, unit, &whole) &&
           !__builtin_add_overflow(whole, unit * v->millionths / MILLION, out);
}

static bool read_device(const char **text, unsigned *out)
{
    struct number v;

    if (!read_number(text, false, &v) || v.whole >= OPTION_DEVICES)
        return false;
    *out = (unsigned)v.whole;
    return true;
}

bool parse_SWITCH(const char *text, atomic_bool *out)
{
    char v[ITEM_MAX];

    if (!only_item(text, v))
        return false;
    bool off = is_off(v);
    if (!off && !is_word(v, "1") && !is_word(v, "on") && !is_word(v, "yes") && !is_word(v, "true"))
        return false;
    *out = !off;
    return true;
}

static bool parse_time(const char *text, uint64_t *out)
{
    static const struct {
        const char *word;
        uint64_t ns;
    } units[] = {{"", SEC},       {"ms", MS},        {"s", SEC},
                 {"m", 60 * SEC}, {"min", 60 * SEC}, {"h", 3600 * SEC}};
    char v[ITEM_MAX];
    const char *p = v;
    struct number n;

    if (!only_item(text, v))
        return false;
    if (is_word(v, "none")) {
        *out = 0;
        return true;
    }
    if (!read_number(&p, true, &n))
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (is_word(p, units[i].word))
            return scale_number(&n, units[i].ns, out);
    return false;
}

bool parse_SECONDS(const char *text, _Atomic uint64_t *out)
{
    uint64_t ns;

    if (!parse_time(text, &ns))
        return false;
    *out = ns;
    return true;
}

static bool parse_size(const char *text, struct option_size *out)
{
    static const struct {
        const char *word;
        uint64_t bytes;
    } units[] = {{"", 1},      {"b", 1},    {"k", KIB},   {"kb", KIB}, {"kib", KIB},
                 {"m", MIB},   {"mb", MIB}, {"mib", MIB}, {"g", GIB},  {"gb", GIB},
                 {"gib", GIB}, {"t", TIB},  {"tb", TIB},  {"tib", TIB}};
    struct option_size size = {0};
    struct number n;

    if (!read_number(&text, true, &n))
        return false;
    if (is_word(text, "%")) {
        if (n.whole > 100 || (n.whole == 100 && n.millionths))
            return false;
        size.is_share = true;
        size.share_ppm = (uint32_t)(n.whole * 10000 + n.millionths / 100);
        *out = size;
        return true;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (is_word(text, units[i].word)) {
            /* a fraction of a byte is a mistake */
            if ((units[i].bytes == 1 && n.millionths) ||
                !scale_number(&n, units[i].bytes, &size.bytes))
                return false;
            *out = size;
            return true;
        }
    }
    return false;
}

/* A size, or a word for none. */
static bool parse_size_or_none(const char *text, bool is_limit, struct option_size *out)
{
    if (!is_word(text, "none") && !(is_limit && is_word(text, "unlimited")))
        return parse_size(text, out);
    *out = (struct option_size){.bytes = is_limit ? UINT64_MAX : 0};
    return true;
}

static bool parse_sizes(const char *text, bool is_limit, struct option_bytes *out)
{
    struct option_size size[OPTION_DEVICES], others;
    uint64_t named = 0;
    bool has_others = false, bad;
    char item[ITEM_MAX];

    while (next_item(&text, item, &bad)) {
        const char *p = item;
        unsigned device;

        if (!strchr(item, '=')) {
            if (has_others || !parse_size_or_none(p, is_limit, &others))
                return false;
            has_others = true;
        } else {
            if (!read_device(&p, &device) || *p != '=' || (named >> device & 1))
                return false;
            for (p++; is_blank(*p); p++)
                ;
            if (!parse_size_or_none(p, is_limit, &size[device]))
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
const char *const parse_reuse_words[] = {[REUSE_AUTO] = "auto",
                                         [REUSE_ORDER] = "order",
                                         [REUSE_READY] = "ready",
                                         [REUSE_WAIT] = "wait"};

enum {
    NUM_BACKINGS = sizeof(parse_backing_words) / sizeof(parse_backing_words[0]),
    NUM_REUSES = sizeof(parse_reuse_words) / sizeof(parse_reuse_words[0])
};

/* The index of the value in a list of words. -1: it is not there. */
static int find_word(const char *text, const char *const words[], size_t num_words)
{
    char v[ITEM_MAX];

    for (size_t i = 0; only_item(text, v) && i < num_words; i++)
        if (is_word(v, words[i]))
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

bool parse_SIGNAL(const char *text, int *out)
{
    char v[ITEM_MAX];
    struct number n = {0, 0};

    if (!only_item(text, v))
        return false;
    const char *p = skip_word(v, "SIG") ? v + 3 : v;
    if (is_off(v)) {
        *out = 0;
    } else if (is_word(p, "USR1")) {
        *out = SIGUSR1;
    } else if (is_word(p, "USR2")) {
        *out = SIGUSR2;
    } else if ((p = skip_word(p, "RTMIN")) != NULL) {
        if (*p == '+') {
            p++;
            if (!read_number(&p, false, &n))
                return false;
        }
        if (*p || n.whole > (uint64_t)(SIGRTMAX - SIGRTMIN))
            return false;
        *out = SIGRTMIN + (int)n.whole;
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
    char item[ITEM_MAX];
    const char *p;

    for (; next_item(&text, item, &bad); num_items++) {
        if (is_off(item)) {
            off = true;
        } else if (is_word(item, "1") || is_word(item, "all") || is_word(item, "on")) {
            e.now = true;
        } else if (is_word(item, "oom")) {
            e.on_oom = true;
        } else if ((p = skip_word(item, "every:")) != NULL) {
            if (!parse_time(p, &e.every_ns) || e.every_ns < MS)
                return false;
        } else if ((p = skip_word(item, "device=")) != NULL) {
            if (!read_device(&p, &device) || *p)
                return false;
            e.device = (int)device;
        } else if ((p = skip_word(item, "keep=")) != NULL) {
            if (!parse_size(p, &keep) || keep.is_share)
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

/* Copies a path and makes it absolute. False, with `out` unchanged: it is too long. In a pattern %p
 * stands for the process id, so a percent sign of the working directory is doubled. */
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

bool parse_PATH(const char *text, struct option_path *out)
{
    if (!is_word(text, "none"))
        return absolute_path(text, false, out->path);
    out->path[0] = '\0';
    return true;
}

bool parse_DIR(const char *text, struct option_dir *out)
{
    bool none = is_word(text, "none");

    if (!none && !absolute_path(text, false, out->path))
        return false;
    out->none = none;
    if (none)
        out->path[0] = '\0';
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

    if (is_off(text)) {
        out->at_exit = out->json = false;
        out->path[0] = '\0';
        return true;
    }
    if ((p = skip_word(text, "exit-json")) != NULL)
        json = true;
    else if (!(p = skip_word(text, "exit")))
        return false;
    if (!*p)
        out->path[0] = '\0';
    else if (!path_behind(p, out->path))
        return false;
    n = strlen(out->path);
    out->at_exit = true;
    out->json = json || (n > 5 && is_word(out->path + n - 5, ".json"));
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

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const char *p = skip_word(text, levels[i].word);

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
    char item[ITEM_MAX];
    bool bad;

    while (next_item(&rest, item, &bad))
        ;
    if (bad || strlen(text) >= sizeof(out->list) || is_word(text, "none"))
        return false;
    strcpy(out->list, text);
    return true;
}

bool parse_globs_match(const char *list, const char *name)
{
    char item[ITEM_MAX];
    bool bad;

    while (next_item(&list, item, &bad))
        if (fnmatch(item, name, 0) == 0)
            return true;
    return false;
}
