/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See options.h: the table of options, and reading it from the environment. The syntax of single
 * values is in shim/option/parse.c. No state, no lock.
 */
#include "shim/option/options.h"

#include "shim/option/show.h"
#include "shim/process/log.h"
#include "shim/process/program.h"
#include "shim/process/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define PREFIX "GPUCACHE"

/* The defaults of config.def in the options' syntax. A new default needs a row here. */
#define SHOWN_UINT64_MAX "none"
#define SHOWN_0 "0"
#define SHOWN_false "off"
#define SHOWN_true "on"
#define SHOWN_BACKING_AUTO "auto"
#define SHOWN_REUSE_AUTO "auto"

#define ALLOWED_BYTES "a size (512M, 8G, 50% of the device), by device (0=8G,1=50%), or none (0)"
#define ALLOWED_LIMIT                                                                              \
    "a size (512M, 8G, 50% of the device), by device (0=8G,1=50%), or none (no limit)"
#define ALLOWED_SECONDS "a time (30, 0.5s, 200ms, 5m, 1h), or none (0)"
#define ALLOWED_BACKING "auto, arena, segment or driver"
#define ALLOWED_REUSE "auto, order, ready or wait"
#define ALLOWED_SWITCH "on or off, 1 or 0"
#define ALLOWED_SIGNAL "USR1, USR2, RTMIN+n or none"
#define ALLOWED_EMPTY_CACHE                                                                        \
    "1, all, oom, every:TIME, device=N, keep=SIZE, separated by commas, or off"
#define ALLOWED_PARK "ask, idle:TIME, lend:TIME (from 1s), retain:SIZE, separated by commas, or off"
#define ALLOWED_STATS "exit, exit-json, exit:FILE, exit-json:FILE or off"
#define ALLOWED_LOG "off, error, warn, info or debug, with a file as LEVEL:FILE"
#define ALLOWED_PATH "the name of a file, or none"
#define ALLOWED_PATTERN ALLOWED_PATH
#define ALLOWED_PLACE "host, or the absolute name of a folder"
#define ALLOWED_TRACE_ON "start or oom"
#define ALLOWED_TRACE_STACKS "a number of frames up to 64, with Python's as N,python, or 0"
#define ALLOWED_DIR "the name of a folder, or none"
#define ALLOWED_GLOBS "names with * and ?, separated by commas"

#define LIVE NULL
const struct option_row option_rows[] = {
#define POOL_OPTION(field, name, type, value, live, help)                                          \
    {PREFIX "_" #name, SHOWN_##value, help, ALLOWED_##type, live},
#define SHIM_OPTION(field, env, type, value, live, help) {env, value, help, ALLOWED_##type, live},
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
};

const size_t num_option_rows = sizeof option_rows / sizeof option_rows[0];

/* One setter for each row, in the same order. */
#define POOL_OPTION(field, name, type, value, live, help)                                          \
    static bool set_##field(struct options *o, const char *text)                                   \
    {                                                                                              \
        return parse_##type(text, &o->field);                                                      \
    }
#define SHIM_OPTION(field, env, type, value, live, help) POOL_OPTION(field, , type, , , )
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION

static bool (*const setters[])(struct options *o, const char *text) = {
#define POOL_OPTION(field, name, type, value, live, help) set_##field,
#define SHIM_OPTION(field, env, type, value, live, help) set_##field,
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
};

bool options_set(struct options *o, size_t row, const char *text)
{
    return setters[row](o, text);
}

/* Scalars go by value, all else by address. */
#define BY_BYTES(value) (&(value))
#define BY_LIMIT(value) (&(value))
#define BY_SECONDS(value) (value)
#define BY_BACKING(value) (value)
#define BY_REUSE(value) (value)
#define BY_SWITCH(value) (value)
#define BY_SIGNAL(value) (value)
#define BY_EMPTY_CACHE(value) (&(value))
#define BY_PARK(value) (&(value))
#define BY_STATS(value) (&(value))
#define BY_LOG(value) (&(value))
#define BY_PATH(value) (&(value))
#define BY_PATTERN(value) (&(value))
#define BY_PLACE(value) (&(value))
#define BY_TRACE_ON(value) (value)
#define BY_TRACE_STACKS(value) (&(value))
#define BY_DIR(value) (&(value))
#define BY_GLOBS(value) (&(value))

size_t options_show(const struct options *o, size_t row, char *out, size_t size_bytes)
{
    size_t i = 0;

#define POOL_OPTION(field, name, type, value, live, help)                                          \
    if (row == i++)                                                                                \
        return show_##type(BY_##type(o->field), out, size_bytes);
#define SHIM_OPTION(field, env, type, value, live, help) POOL_OPTION(field, , type, , , )
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
    return 0;
}

static void default_BYTES(struct option_bytes *out, uint64_t bytes)
{
    out->others = (struct option_size){.bytes = bytes};
}

#define default_LIMIT default_BYTES
#define default_SECONDS(out, value) (*(out) = (value))
#define default_BACKING(out, value) (*(out) = (value))
#define default_REUSE(out, value) (*(out) = (value))
#define default_SWITCH(out, value) (*(out) = (value))

static void set_defaults(struct options *o)
{
#define POOL_OPTION(field, name, type, value, live, help) default_##type(&o->field, value);
#define SHIM_OPTION(field, env, type, value, live, help)                                           \
    if ((value)[0])                                                                                \
        set_##field(o, value);
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
}

/* An empty variable counts as unset. */
static const char *value_of(const char *env)
{
    const char *value = secure_getenv(env);

    return value && value[0] ? value : NULL;
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;

    return m < c ? m : c;
}

/* The number of letters to change, insert or remove to get from the first n letters of a to b. Case
 * does not count. */
static unsigned edit_distance(const char *a, size_t n, const char *b)
{
    enum { MAX = 64 };
    unsigned row[MAX + 1];
    size_t m = strlen(b);

    if (n > MAX)
        n = MAX;
    if (m > MAX)
        m = MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            char c = a[i - 1] >= 'a' && a[i - 1] <= 'z' ? (char)(a[i - 1] - 'a' + 'A') : a[i - 1];
            unsigned above = row[j];

            row[j] = min3(diagonal + (c != b[j - 1]), above + 1, row[j - 1] + 1);
            diagonal = above;
        }
    }
    return row[m];
}

/* A name without GPUCACHE is compared with the rest of names. */
const char *options_nearest(const char *name, size_t n)
{
    static const char prefix[] = PREFIX "_";
    bool bare = n < sizeof PREFIX - 1 || strncmp(name, PREFIX, sizeof PREFIX - 1) != 0;
    const char *nearest = NULL;
    unsigned best = 0;

    for (size_t i = 0; i < num_option_rows; i++) {
        const char *env = option_rows[i].env;
        bool has_prefix = strncmp(env, prefix, sizeof prefix - 1) == 0;
        unsigned d = edit_distance(name, n, env + (bare && has_prefix ? sizeof prefix - 1 : 0));

        if (!nearest || d < best) {
            nearest = option_rows[i].env;
            best = d;
        }
    }
    return nearest;
}

size_t options_find(const char *name, size_t n)
{
    static const char prefix[] = PREFIX "_";

    for (size_t i = 0; i < num_option_rows; i++) {
        const char *env = option_rows[i].env;

        if (strlen(env) == n && strncmp(env, name, n) == 0)
            return i;
        if (strncmp(env, prefix, sizeof prefix - 1) == 0)
            env += sizeof prefix - 1;
        if (strlen(env) == n && strncmp(env, name, n) == 0)
            return i;
    }
    return NUM_OPTIONS;
}

/* Most processes set no variable. This look saves two dozen walks over the environment. */
static bool any_set(void)
{
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, PREFIX, sizeof PREFIX - 1) == 0)
            return true;
    return false;
}

static void warn_unknown_names(void)
{
    static const char prefix[] = PREFIX "_";

    for (char **e = environ; e && *e; e++) {
        size_t n = strcspn(*e, "=");

        if (strncmp(*e, prefix, sizeof prefix - 1) != 0)
            continue;
        if (options_find(*e, n) == NUM_OPTIONS)
            log_warn("there is no option %.*s; the nearest is %s", n < 80 ? (int)n : 80, *e,
                     options_nearest(*e, n));
    }
}

void options_warn_value(const char *env, const char *value, const char *instead)
{
    for (size_t i = 0; i < num_option_rows; i++)
        if (strcmp(option_rows[i].env, env) == 0)
            log_warn("%s=%.80s%s is not understood: it takes %s; %s", env, value,
                     strlen(value) > 80 ? "..." : "", option_rows[i].allowed, instead);
}

static void warn_default_kept(size_t row, const char *value)
{
    static const char *const unset = "unset", *const head = "the default holds: ";
    const char *shown = option_rows[row].value[0] ? option_rows[row].value : unset;
    char instead[64];
    size_t n = strlen(head);

    memcpy(instead, head, n);
    strncpy(instead + n, shown, sizeof instead - n - 1);
    instead[sizeof instead - 1] = '\0';
    options_warn_value(option_rows[row].env, value, instead);
}

/* Does what the program was started as match, or the file that runs? */
static bool matches_program(const struct option_globs *globs)
{
    char file[PROGRAM_NAME_MAX];

    return parse_globs_match(globs->list, program_name(file)) ||
           (program_file_name(file, sizeof file) && parse_globs_match(globs->list, file));
}

bool options_enabled_early(void)
{
    struct option_globs globs;
    const char *value;
    atomic_bool on;

    if (getauxval(AT_SECURE))
        return false;
    value = value_of(PREFIX);
    if (value && parse_SWITCH(value, &on) && !on)
        return false;
    value = value_of(PREFIX "_ONLY");
    if (value && parse_GLOBS(value, &globs) && !matches_program(&globs))
        return false;
    value = value_of(PREFIX "_SKIP");
    return !(value && parse_GLOBS(value, &globs) && matches_program(&globs));
}

bool options_load(struct options *o)
{
    int saved_errno = errno;
    const char *value = value_of(PREFIX "_LOG");

    set_defaults(o);
    if (!options_enabled_early())
        return false;
    /* First, because the warnings about the other variables go to the log. */
    if (value)
        set_log(o, value);
    log_configure(o->log.level, o->log.path);
    if (!any_set())
        return true;
    for (size_t i = 0; i < num_option_rows; i++) {
        value = value_of(option_rows[i].env);
        if (value && !setters[i](o, value))
            warn_default_kept(i, value);
    }
    warn_unknown_names();
    errno = saved_errno;
    return true;
}

static uint64_t bytes_of(const struct option_bytes *o, int device, uint64_t total_bytes)
{
    bool named = device >= 0 && device < OPTION_DEVICES && (o->named >> device & 1);
    const struct option_size *s = named ? &o->device[device] : &o->others;

    if (!s->is_share)
        return s->bytes;
    return total_bytes / 1000000 * s->share_ppm + total_bytes % 1000000 * s->share_ppm / 1000000;
}

#define convert_BYTES(value) bytes_of(&(value), device, device_total_bytes)
#define convert_LIMIT convert_BYTES
#define convert_SECONDS(value) (value)
#define convert_BACKING(value) (value)
#define convert_REUSE(value) (value)
#define convert_SWITCH(value) (value)

#define GIB_OF(bytes) text_fixed(bytes, 1 << 30, 1).text
/* device_total_bytes is 0 if the driver does not say. */
#define WARN_BEYOND(name, bytes, least_bytes, consequence)                                         \
    do {                                                                                           \
        if (device_total_bytes && (bytes) >= (least_bytes))                                        \
            log_once(LOG_LEVEL_WARN,                                                               \
                     PREFIX "_" name " asks for %s GiB, and device %d has %s GiB: " consequence,   \
                     GIB_OF(bytes), device, GIB_OF(device_total_bytes));                           \
    } while (0)

void options_pool_config(const struct options *o, int device, uint64_t device_total_bytes,
                         struct pool_config *out)
{
#define POOL_OPTION(field, name, type, value, live, help) out->field = convert_##type(o->field);
#define SHIM_OPTION(field, env, type, value, live, help)
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
}

void options_warn_beyond(const struct pool_config *config, int device, uint64_t device_total_bytes)
{
    /* The context itself takes memory of the device, so the whole device is never free. */
    WARN_BEYOND("MIN_FREE", config->min_free_bytes, device_total_bytes,
                "all idle memory is given back");
    WARN_BEYOND("MIN_BLOCK", config->min_block_bytes, device_total_bytes,
                "every request goes to the driver");
}

uint64_t options_redzone_bytes(const struct options *o, int device, uint64_t device_total_bytes)
{
    uint64_t bytes = bytes_of(&o->redzone, device, device_total_bytes);

    WARN_BEYOND("REDZONE", bytes, device_total_bytes, "no bytes are kept behind blocks");
    return bytes < device_total_bytes ? (bytes + 511) & ~UINT64_C(511) : 0;
}

bool options_parse_empty_cache(const char *text, struct empty_cache *out)
{
    if (!text[0]) {
        *out = (struct empty_cache){.device = -1};
        return true;
    }
    return parse_EMPTY_CACHE(text, out);
}
