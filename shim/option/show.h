/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One function for each type of option: the value as text, in the option's own syntax. The parser
 * of the type (shim/option/parse.h) makes the same value of the text. One value cannot be written:
 * an unset list of patterns, shown as "". No state, no lock.
 */
#ifndef SHIM_SHOW_H
#define SHIM_SHOW_H

#include "shim/option/parse.h"

#include <stddef.h>

/* No text is longer, its final NUL included. */
enum { SHOW_MAX_BYTES = PATH_MAX + 64 };

/* Like snprintf: they write at most size_bytes with the final NUL and return the length of the
 * whole text. */
size_t show_SWITCH(bool on, char *out, size_t size_bytes);
size_t show_SECONDS(uint64_t ns, char *out, size_t size_bytes);
size_t show_BYTES(const struct option_bytes *value, char *out, size_t size_bytes);
size_t show_LIMIT(const struct option_bytes *value, char *out, size_t size_bytes);
size_t show_BACKING(enum pool_backing value, char *out, size_t size_bytes);
size_t show_REUSE(enum pool_reuse value, char *out, size_t size_bytes);
size_t show_TRACE_ON(enum trace_on value, char *out, size_t size_bytes);
size_t show_TRACE_STACKS(const struct option_trace_stacks *value, char *out, size_t size_bytes);
size_t show_SIGNAL(int number, char *out, size_t size_bytes);
size_t show_EMPTY_CACHE(const struct empty_cache *value, char *out, size_t size_bytes);
size_t show_PARK(const struct option_park *value, char *out, size_t size_bytes);
size_t show_STATS(const struct option_stats *value, char *out, size_t size_bytes);
size_t show_LOG(const struct option_log *value, char *out, size_t size_bytes);
size_t show_PATH(const struct option_path *value, char *out, size_t size_bytes);
#define show_PATTERN show_PATH
size_t show_PLACE(const struct option_place *value, char *out, size_t size_bytes);
size_t show_DIR(const struct option_dir *value, char *out, size_t size_bytes);
size_t show_GLOBS(const struct option_globs *value, char *out, size_t size_bytes);

#endif
