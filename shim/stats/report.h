/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room stats/: the counters of the process and the report, without CUDA. It includes only
 * process/ and what the pool has for outsiders. Its one seam is that
 * figures come in as copies: no file here looks at a pool or at a context.
 *
 * A report is text for people or one JSON object. Its fields are those of pool/stats.def,
 * shim/stats/async_stats.def and shim/stats/counters.def. Takes no lock.
 */
#ifndef SHIM_REPORT_H
#define SHIM_REPORT_H

#include "pool/config.h"
#include "pool/stats.h"
#include "shim/option/options.h"
#include "shim/stats/async_stats.h"
#include "shim/stats/counters.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_pool {
    int device;
    const char *name;                 /* of the device; any string may be NULL */
    const char *backing;              /* "arena", "segment", ... */
    const char *reason;               /* why that backing */
    const char *uuid;                 /* of the device, as nvidia-smi prints it */
    const unsigned char *uuid_bytes;  /* 16 of them */
    uint64_t total_bytes;             /* of the device */
    uint64_t returned_ns, regrown_ns; /* as struct page_gpu has them */
    struct pool_config config;        /* the options in force */
    struct pool_stats stats;
    struct async_stats async; /* with the first row of a device; else all 0 */
};

/* The last flush. */
struct report_flush {
    uint64_t count;     /* of all flushes so far */
    const char *reason; /* "signal", "interval", ...; NULL: there was none */
    uint64_t unix_ns;   /* when it ended, CLOCK_REALTIME */
    uint64_t bytes;     /* given back */
    uint64_t ns;        /* how long it took */
};

/* A process whose device memory is on the host, or on its way back. */
struct report_park {
    const char *state;      /* "parked", "waking", or "waits": for device memory */
    uint64_t since_unix_ns; /* when it was parked, CLOCK_REALTIME; 0: unknown */
    uint64_t needs_bytes;   /* of "waits", on all devices */
    bool whole;             /* the process has left the GPU (shim/park/whole.h) */
};

struct report {
    const struct report_pool *pools;
    size_t num_pools;
    size_t num_left_out;              /* pools that found no room in `pools` */
    const struct options *options;    /* in force; NULL: the JSON does not name them */
    const struct report_flush *flush; /* NULL: the same */
    const struct report_park *park;   /* NULL: it is not parked */
    const char *command;              /* the start of the command line; NULL: the same */
    bool running;                     /* not at the exit: more may come */
    int signal;                       /* the signal that gives idle memory back; 0: none */
    uint64_t elapsed_ns;              /* since the library started; 0: unknown */
    uint64_t driver_call_ns;          /* time of one cuMemAlloc or cuMemFree here, if measured; 0:
                                         REPORT_DRIVER_CALL_NS */
};

/* The least time of a call: the mean of cudaMalloc (2.2 us) and cudaFree (2.0 us) of 64 KiB. These
 * were 64 calls in a row on an idle device (NVIDIA H200, driver 580). No other size was cheaper.
 * Larger blocks take up to a hundred times as long. A free in a busy program also waits for the
 * device. */
enum { REPORT_DRIVER_CALL_NS = 2100 };

/* Like snprintf: they write at most size_bytes with the final NUL and return the length of the
 * whole text. Both texts end in a newline, and the JSON has no other. They read the process's
 * counters. */
size_t report_text(const struct report *r, char *out, size_t size_bytes);
size_t report_json(const struct report *r, char *out, size_t size_bytes);

/* Writes the report where the option says. False: it could not be written. Keeps errno. */
bool report_write(const struct report *r, const struct option_stats *where);

#endif
