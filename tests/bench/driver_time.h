/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The time that driver calls take, on the model's clock. A call holds up its thread for so long,
 * and the GPU works on meanwhile. The figures are those of an H200 (tests/bench/README.md). A call
 * on a busy GPU takes longer than on an idle one.
 */
#ifndef TESTS_BENCH_DRIVER_TIME_H
#define TESTS_BENCH_DRIVER_TIME_H

#include "tests/unit/model.h"

#include <stdatomic.h>

struct driver_time {
    struct model *model;
    struct backend_ops ops; /* the model's rows, with their time */
    const struct backend_ops *real;
    _Atomic uint64_t spent_ns, unmaps;
};

/* From here on the model's memory rows take time. *d lives as long as the model. */
void driver_time_init(struct driver_time *d, struct model *m);

#endif
