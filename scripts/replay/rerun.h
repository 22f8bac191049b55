/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A recording on a pool with other settings: what the pool would have held, and for what price.
 * GPU work is done at once, because a trace does not tell how long it takes. Where the trace's time
 * passes, the limits on idle memory are enforced as the control thread does.
 */
#ifndef REPLAY_RERUN_H
#define REPLAY_RERUN_H

#include "scripts/replay/recording.h"
#include "scripts/replay/setting.h"

enum rerun_state {
    RERUN_DONE,
    RERUN_LATE,    /* there was no time for it */
    RERUN_BOUNDED, /* MAX_RESERVED=least: there was no time for a smaller value; this one serves */
    RERUN_BROKEN,  /* the pool and the model disagree */
};

struct rerun {
    enum rerun_state state;
    uint64_t max_reserved_bytes;     /* in force; UINT64_MAX: no limit */
    uint64_t peak_bytes, mean_bytes; /* held on the device */
    uint64_t num_failed, first_failed_ns, first_failed_bytes;
    uint64_t driver_ns, busy_ns; /* in driver calls: with the GPU idle, or at work all the time */
};

/* deadline_ns: of the process's own time on a CPU, which other load does not shorten. */
void rerun(struct rerun *out, const struct recording *r, const struct setting *s,
           uint64_t gpu_bytes, uint64_t deadline_ns);

#endif
