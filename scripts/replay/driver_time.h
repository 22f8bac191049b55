/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The time that driver calls take, on the model's clock. A call holds up its thread for so long,
 * and the GPU works on meanwhile. The figures are those of an H200 (tests/bench/README.md). A call
 * on a busy GPU takes longer than on an idle one.
 */
#ifndef REPLAY_DRIVER_TIME_H
#define REPLAY_DRIVER_TIME_H

#include "scripts/replay/model.h"

#include <stdatomic.h>

struct driver_time {
    struct model *model;
    struct backend_ops ops; /* the model's rows, with their time */
    const struct backend_ops *real;
    _Atomic uint64_t spent_ns, unmaps;
    _Atomic uint64_t busy_ns; /* what the same calls take while the GPU is at work all the time */
};

/* From here on the model's memory rows take time. *d lives as long as the model. */
void driver_time_init(struct driver_time *d, struct model *m);

/* The driver serves a request of the program's beside the pool. False: it has no memory. One thread
 * at a time. */
bool driver_time_alloc(struct driver_time *d, uint64_t size_bytes);
void driver_time_free(struct driver_time *d, uint64_t size_bytes);

#endif
