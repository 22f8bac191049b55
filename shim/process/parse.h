/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From text to option values, one function per option type. All take the whole value, ignore blanks
 * around it (not around paths), do not look at the locale, keep errno, and return
 * false, with *out as it was, for what they do not understand or what is out of range.
 */
#ifndef SHIM_PARSE_H
#define SHIM_PARSE_H

#include "shim/process/options.h"

bool parse_SWITCH(const char *text, bool *out);
/* A time in nanoseconds: 30, 0.5s, 200ms, 5m, 1h; plain numbers are seconds; none is 0. */
bool parse_SECONDS(const char *text, uint64_t *out);
/* Sizes for all devices and single ones: 8G, 50%, none, 0=8G,1=50%. What is not named stays. "none"
 * is 0 of BYTES, and no limit (also "unlimited") of LIMIT. */
bool parse_LIMIT(const char *text, struct option_bytes *out);
bool parse_BYTES(const char *text, struct option_bytes *out);
bool parse_BACKING(const char *text, enum pool_backing *out);
bool parse_REUSE(const char *text, enum pool_reuse *out);
bool parse_SIGNAL(const char *text, int *out);
bool parse_EMPTY_CACHE(const char *text, struct empty_cache *out);
bool parse_STATS(const char *text, struct option_stats *out);
bool parse_LOG(const char *text, struct option_log *out);
/* Relative paths are taken from the working directory of now; "none" is no file, "./none" one. */
bool parse_PATH(const char *text, struct option_path *out);
/* "none" is refused: it could mean no pattern or no program. */
bool parse_GLOBS(const char *text, struct option_globs *out);

/* Whether a name matches one of the patterns (shell wildcards); false for an empty list. */
bool parse_globs_match(const char *list, const char *name);

#endif
