/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The times and sizes of options. strtod does not serve, because it depends on the locale. No
 * state, no lock.
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

/* A time in nanoseconds: 30, 0.5s, 200ms, 5m, 1h. Plain numbers are seconds. "none" is 0. It has
 * blanks only around it and before its unit. False, with *out unchanged: it is not understood. */
bool number_time(const char *text, uint64_t *out_ns);
/* A size: 4096, 8G, 1.5 GiB, 50%. Units are powers of 1024. It has blanks only before its unit.
 * False, with *out unchanged: it is not understood, or has a fraction of a byte. */
bool number_size(const char *text, struct option_size *out);

#endif
