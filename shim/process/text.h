/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A text that grows in a buffer of the caller's. No lock, no memory of its own.
 */
#ifndef SHIM_TEXT_H
#define SHIM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A figure for people. */
struct figure {
    char text[32];
};

/* value in units, with one or two decimals, rounded down. printf would print the decimal comma of
 * the program's locale. */
struct figure text_fixed(uint64_t value, uint64_t unit, unsigned decimals);

/* used_bytes counts the letters that did not fit, too. */
struct text {
    char *out;
    size_t size_bytes, used_bytes;
};

/* Adds what printf would print, as far as there is room, and a NUL. */
void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds "name":"value" as JSON. What is not UTF-8 becomes U+FFFD. value may be NULL. */
void text_add_json_string(struct text *t, const char *name, const char *value);
/* Did all of it fit, with the NUL? */
static inline bool text_fits(const struct text *t)
{
    return t->used_bytes < t->size_bytes;
}

#endif
