/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The process's options, generated from shim/process/options.def: one struct, filled from the environment.
 * Owns no memory and takes no lock. The parsers of single values are in shim/process/parse.h.
 */
#ifndef SHIM_OPTIONS_H
#define SHIM_OPTIONS_H

#include "pool/config.h"
#include "shim/process/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_BYTES struct option_bytes
#define OPTION_LIMIT struct option_bytes
#define OPTION_SECONDS uint64_t
#define OPTION_BACKING enum pool_backing
#define OPTION_REUSE enum pool_reuse
#define OPTION_SWITCH bool
#define OPTION_SIGNAL int /* the signal's number, 0: none */
#define OPTION_EMPTY_CACHE struct empty_cache
#define OPTION_STATS struct option_stats
#define OPTION_LOG struct option_log
#define OPTION_PATH struct option_path
#define OPTION_GLOBS struct option_globs

struct options {
#define POOL_OPTION(field, name, type, value, help) OPTION_##type field;
#define SHIM_OPTION(field, env, type, value, help) OPTION_##type field;
#include "shim/process/options.def"
#undef POOL_OPTION
#undef SHIM_OPTION
};

/* One row of the table, as documentation and warnings need it. */
struct option_row {
    const char *env;   /* full name of the variable */
    const char *value; /* the default, as a user would write it; "": unset */
    const char *help;
    const char *allowed; /* what may be written, in words */
};

extern const struct option_row option_rows[];
extern const size_t num_option_rows;

/* Whether this process is to be served at all: GPUCACHE, GPUCACHE_ONLY, GPUCACHE_SKIP, and never
 * one that runs with privileges of its file (AT_SECURE). Cheap, needs nothing, writes nothing,
 * keeps errno; reads the environment anew at each call. */
bool options_enabled_early(void);

/* Fills *o, which must be all zero, with the defaults, then from the environment, and configures the log accordingly. Each
 * value that is not understood is warned of once and its default kept; unknown GPUCACHE_* names are
 * warned of with the nearest name. False, with the defaults and no word said, if the process is not
 * to be served (see options_enabled_early). struct options is large (PATH_MAX): better static than
 * on a stack. */
bool options_load(struct options *o);

/* The pool's part for one device, shares turned into bytes of total_bytes. device: its ordinal; one
 * that is out of range gets what unnamed devices get. What such a device cannot have is warned of,
 * once for each option, but for PREALLOC, of which only the driver knows whether it can. */
void options_pool_config(const struct options *o, int device, uint64_t device_total_bytes,
                         struct pool_config *out);

/* GPUCACHE_REDZONE on one device: a multiple of 512 bytes; none at all counts as 0. */
uint64_t options_redzone_bytes(const struct options *o, int device, uint64_t device_total_bytes);

/* A value of GPUCACHE_EMPTY_CACHE: 1, all, oom, every:TIME, device=N, keep=SIZE, separated by
 * commas; or 0, off, "" for nothing at all. device and keep alone ask for a flush now. False, with
 * *out as it was and no word said, if it is not understood. */
bool options_parse_empty_cache(const char *text, struct empty_cache *out);

/* Warns that a value of a variable was not understood, naming what is allowed and what holds
 * instead. env must be a name of the table. */
void options_warn_value(const char *env, const char *value, const char *instead);

#endif
