/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The requests in a trace (shim/trace/format.h), in the order of time. A trace may be cut off, be
 * written to while it is read, or hold anything: what makes no sense is left out.
 */
#ifndef REPLAY_RECORDING_H
#define REPLAY_RECORDING_H

#include <stddef.h>
#include <stdint.h>

struct recording_event {
    uint64_t ns;         /* since the trace began */
    uint64_t size_bytes; /* as asked for; 0: a free */
    uint32_t block;      /* the same number for an allocation and its free, then used anew */
};

struct recording {
    struct recording_event *events;
    size_t count;
    uint32_t num_blocks; /* every block's number is below */
    uint64_t peak_live_bytes;
    uint64_t span_ns;   /* to the last time that the file tells */
    uint64_t gpu_bytes; /* 0: the trace does not tell */
    unsigned num_gpus;  /* with a pool */
};

/* NULL, or why there is none, in words. *r is all zero then. */
const char *recording_read(struct recording *r, const char *path);
void recording_finish(struct recording *r);

#endif
