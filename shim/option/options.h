/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The options of the process, generated from shim/option/options.def: one struct, filled from the
 * environment. Owns no memory and takes no lock. The types of single values and their parsers are
 * in shim/option/parse.h.
 */
#ifndef SHIM_OPTIONS_H
#define SHIM_OPTIONS_H

#include "pool/config.h"
#include "shim/option/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_BYTES struct option_bytes
#define OPTION_LIMIT struct option_bytes
#define OPTION_SECONDS _Atomic uint64_t
#define OPTION_BACKING enum pool_backing
#define OPTION_REUSE enum pool_reuse
#define OPTION_SWITCH atomic_bool /* any thread may read it while it changes */
#define OPTION_SIGNAL int         /* the signal's number, 0: none */
#define OPTION_EMPTY_CACHE struct empty_cache
#define OPTION_PARK struct option_park
#define OPTION_PLACE struct option_place
#define OPTION_STATS struct option_stats
#define OPTION_LOG struct option_log
#define OPTION_PATH struct option_path
#define OPTION_PATTERN struct option_path
#define OPTION_TRACE_ON enum trace_on
#define OPTION_TRACE_STACKS struct option_trace_stacks
#define OPTION_DIR struct option_dir
#define OPTION_GLOBS struct option_globs

struct options {
#define POOL_OPTION(field, name, type, value, live, help) OPTION_##type field;
#define SHIM_OPTION(field, env, type, value, live, help) OPTION_##type field;
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
};

/* The index of each row of the table. */
enum option {
#define POOL_OPTION(field, name, type, value, live, help) OPTION_ROW_##field,
#define SHIM_OPTION(field, env, type, value, live, help) OPTION_ROW_##field,
#include "shim/option/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
    NUM_OPTIONS
};

/* Does the pool have it (pool/config.def)? */
static inline bool option_is_of_pools(size_t row)
{
    return row < OPTION_ROW_enabled;
}

/* One row of the table, for the documentation and the warnings. */
struct option_row {
    const char *env;   /* full name of the variable */
    const char *value; /* the default, in the option's syntax; "": unset */
    const char *help;
    const char *allowed; /* what the value may be, in words */
    const char *fixed;   /* why it cannot change while the program runs; NULL: it can */
};

extern const struct option_row option_rows[];
extern const size_t num_option_rows;

/* The value of option_rows[row] as text, in the option's own syntax; "" for an unset list of
 * patterns. Like snprintf; no text with its NUL is longer than SHOW_MAX_BYTES
 * (shim/option/show.h). */
size_t options_show(const struct options *o, size_t row, char *out, size_t size_bytes);

/* The row of a name of n bytes, with or without GPUCACHE_ before it; NUM_OPTIONS: there is none. */
size_t options_find(const char *name, size_t n);
/* The name of a row that is most like the n bytes. */
const char *options_nearest(const char *name, size_t n);
/* Gives the row a new value; the row's `fixed` is the caller's matter. Sizes for devices that the
 * text does not name stay. False, with *o unchanged and without a message: the text is not
 * understood. */
bool options_set(struct options *o, size_t row, const char *text);

/* Does the library serve this process? GPUCACHE, GPUCACHE_ONLY and GPUCACHE_SKIP say so. It never
 * serves a process that has privileges of its file (AT_SECURE). Reads the environment at each call,
 * writes nothing, and keeps errno. */
bool options_enabled_early(void);

/* Fills *o, which must be all zero, with the defaults and then from the environment. Configures the
 * log. Warns of each value that is not understood and keeps its default. Warns of each unknown
 * GPUCACHE_* name and gives the nearest name. False, with the defaults and without a message: the
 * library does not serve this process (options_enabled_early). struct options is large (PATH_MAX),
 * so it should be static. */
bool options_load(struct options *o);

/* The pool's options for one device, with shares of device_total_bytes turned into bytes. device:
 * the ordinal; an ordinal out of range gets the value for unnamed devices. */
void options_pool_config(const struct options *o, int device, uint64_t device_total_bytes,
                         struct pool_config *out);
/* Warns once for each option that asks for more than the device has. Does not check PREALLOC,
 * because only the driver knows how much it can give. */
void options_warn_beyond(const struct pool_config *config, int device, uint64_t device_total_bytes);

/* GPUCACHE_REDZONE on one device: a multiple of 512 bytes. A value of the device's size or more
 * counts as 0. */
uint64_t options_redzone_bytes(const struct options *o, int device, uint64_t device_total_bytes);

/* A value of GPUCACHE_EMPTY_CACHE: 1, all, oom, every:TIME, device=N, keep=SIZE, separated by
 * commas. 0, off and "" stand for nothing at all. device and keep alone ask for a flush now. False,
 * with *out unchanged and without a message: the value is not understood. */
bool options_parse_empty_cache(const char *text, struct empty_cache *out);

/* Warns that a value of a variable is not understood. The message says what is allowed, and
 * `instead`. env must be a name of the table. */
void options_warn_value(const char *env, const char *value, const char *instead);

#endif
