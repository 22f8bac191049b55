/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Plain decimal numbers in texts: the kernel's files, requests, names of pages, options. The C
 * library's functions do not serve. strtoul and its relatives have a symbol version of the building
 * machine's C library. No state, no lock.
 */
#ifndef SHIM_DECIMAL_H
#define SHIM_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

/* The decimal number at *text, without a sign; *text then stands behind its digits. False, with
 * both unchanged: there is none, or it does not fit. */
static inline bool decimal_read(const char **text, uint64_t *out)
{
    const char *p = *text;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return false;
    if (p == *text)
        return false;
    *text = p;
    *out = v;
    return true;
}

#endif
