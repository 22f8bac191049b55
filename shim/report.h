/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the pools and the process did, as text for people or as one JSON object. Field names are
 * those of pool/stats.def and shim/counters.def. Takes no lock: the caller has copied the
 * statistics.
 */
#ifndef SHIM_REPORT_H
#define SHIM_REPORT_H

#include "pool/stats.h"
#include "shim/counters.h"
#include "shim/options.h"

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
    uint64_t driver_call_ns; /* what one cuMemAlloc or cuMemFree costs here, if measured; 0: the
                                least that was measured elsewhere, see REPORT_DRIVER_CALL_NS */
};

/* Half a pair of cudaMalloc and cudaFree on an idle device, at the size where it is cheapest (53.5
 * us at 2 MiB; NVIDIA H200, driver 580): an estimate from below, since a free in a busy program
 * waits too. */
enum { REPORT_DRIVER_CALL_NS = 26750 };

/* Like snprintf: write at most size_bytes with the final NUL, return the length that the whole has.
 * Both end in a newline; the JSON has no other. They read the process-wide counters. */
size_t report_text(const struct report *r, char *out, size_t size_bytes);
size_t report_json(const struct report *r, char *out, size_t size_bytes);

/* To where the option says. False if it could not be written. Keeps errno. */
bool report_write(const struct report *r, const struct option_stats *where);

#endif
