/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Numbers in texts: plain ones of the kernel's files and of requests, and the times and sizes of
 * options. The C library's functions do not serve. strtoul and its relatives have a symbol version
 * of the building machine's C library, and strtod depends on the locale. No state, no lock.
 */
#ifndef SHIM_NUMBER_H
#define SHIM_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* A size: bytes, or a share of a device's memory in millionths. */
struct option_size {
    uint64_t bytes; /* UINT64_MAX: no limit */
    uint32_t share_ppm;
    bool is_share;
};

/* The decimal number at *text, without a sign; *text then stands behind its digits. False, with
 * both unchanged: there is none, or it does not fit. */
static inline bool number_read(const char **text, uint64_t *out)
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

/* A time in nanoseconds: 30, 0.5s, 200ms, 5m, 1h. Plain numbers are seconds. "none" is 0. It has
 * blanks only around it and before its unit. False, with *out unchanged: it is not understood. */
bool number_time(const char *text, uint64_t *out_ns);
/* A size: 4096, 8G, 1.5 GiB, 50%. Units are powers of 1024. It has blanks only before its unit.
 * False, with *out unchanged: it is not understood, or has a fraction of a byte. */
bool number_size(const char *text, struct option_size *out);

#endif
