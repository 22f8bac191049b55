/* SPDX-License-Identifier: BSD-2-Clause
 *
 * FNV-1a, a hash of 64 bits. No state, no lock.
 */
#ifndef SHIM_FNV_H
#define SHIM_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV_EMPTY UINT64_C(14695981039346656037) /* the hash of no bytes */

/* The hash of the bytes that `hash` stands for, and of these behind them. */
static inline uint64_t fnv_add(uint64_t hash, const void *data, size_t size_bytes)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size_bytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

#endif
