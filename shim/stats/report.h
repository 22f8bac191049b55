/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the pools and the process did, as text for people or as one JSON object. Field names are
 * those of pool/stats.def and shim/stats/counters.def. Takes no lock: the caller has copied the
 * statistics.
 */
#ifndef SHIM_REPORT_H
#define SHIM_REPORT_H

#include "pool/stats.h"
#include "shim/process/parse.h"
#include "shim/stats/counters.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_pool {
    int device;
    const char *name;    /* of the device; any string may be NULL */
    const char *backing; /* "arena", "segment", ... */
    const char *reason;  /* why that backing */
    struct pool_stats stats;
};

struct report {
    const struct report_pool *pools;
    size_t num_pools;
    uint64_t elapsed_ns;     /* since the first pool was made; 0: unknown */
    uint64_t driver_call_ns; /* what one cuMemAlloc or cuMemFree costs here, if measured; 0: take
                                REPORT_DRIVER_CALL_NS */
};

/* The least that a call costs: the mean of cudaMalloc (2.2 us) and cudaFree (2.0 us) of 64 KiB, 64 in
 * a row on an idle device, the cheapest of all sizes (NVIDIA H200, driver 580). Larger blocks cost up
 * to a hundred times as much, and a free in a busy program waits for the device as well. */
enum { REPORT_DRIVER_CALL_NS = 2100 };

/* Like snprintf: write at most size_bytes with the final NUL, return the length that the whole has.
 * Both end in a newline; the JSON has no other. They read the process-wide counters. */
size_t report_text(const struct report *r, char *out, size_t size_bytes);
size_t report_json(const struct report *r, char *out, size_t size_bytes);

/* To where the option says. False if it could not be written. Keeps errno. */
bool report_write(const struct report *r, const struct option_stats *where);

#endif
