/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sizes in powers of two and the units that the whole pool counts in.
 */
#ifndef POOL_BITS_H
#define POOL_BITS_H

#include <stdbool.h>
#include <stdint.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* The driver aligns to 512 bytes; no block of ours starts or ends elsewhere. */
#define UNIT_SHIFT 9
#define UNIT_BYTES (UINT64_C(1) << UNIT_SHIFT)
/* The map's page: the commit granularity of every GPU so far. */
#define GRANULE_SHIFT 21
#define GRANULE_BYTES (UINT64_C(1) << GRANULE_SHIFT)
/* Largest block of the small zone. At most two blocks larger than this start in one granule. */
#define SMALL_MAX_BYTES (UINT64_C(1) << 20)
/* Device addresses are below this on every platform with unified addressing. */
#define ADDR_LIMIT (UINT64_C(1) << 48)

static inline uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) & ~(to - 1);
}

static inline uint64_t round_down(uint64_t n, uint64_t to)
{
    return n & ~(to - 1);
}

static inline unsigned log2_floor(uint64_t n)
{
    return 63u - (unsigned)__builtin_clzll(n);
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* 0 where b is larger. Statistics may change while they are copied. */
static inline uint64_t minus_u64(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

#endif
