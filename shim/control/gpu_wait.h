/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A wait of the control thread for GPU work, and for the answer of frameworks before that, in
 * turns. The thread looks whether that is over, and goes on with its other duties between two
 * looks.
 *
 * Why a wait holds up nothing, and ends:
 *  1. gpu_wait_begin and gpu_wait_over wait for no GPU work. A look asks the driver once for each
 *     pool (pool_has_settled) and returns.
 *  2. Between two looks GPU_WAIT_LEAST_NS pass at least, and GPU_WAIT_MOST_NS at most. Meanwhile
 *     the thread runs what is due (thread.h). So requests, publications and limits wait for one
 *     look at most, however long the work takes.
 *  3. gpu_wait_over is true from until_ns on, whatever the driver says. So a wait behind work
 *     without an end is over in time, if its owner's duty runs. While a capture is open, a duty
 *     that needs calm does not run. So an owner that must keep a bound has a duty that needs no
 *     calm.
 *  4. While a capture is open a look asks nothing.
 *  5. The owner may wait at once in its call of pool_trim, for GPU_WAIT_FIRST_NS at most. Most work
 *     ends sooner, and a look a millisecond later would be late.
 *  6. The marks are taken before that first wait. So the wait is for what was freed before then. A
 *     program that goes on to free memory behind more work does not prolong it.
 *
 *  7. A wait for frameworks has a bound of its own, also where until_ns comes sooner. After it the
 *     marks are taken anew, because the frameworks may have freed memory behind work.
 *
 * No lock: the state of a wait belongs to the control thread.
 */
#ifndef SHIM_GPU_WAIT_H
#define SHIM_GPU_WAIT_H

#include "shim/context/context.h"
#include "shim/framework/framework.h"
#include "shim/process/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define GPU_WAIT_LEAST_NS MS_NS
#define GPU_WAIT_MOST_NS (20 * MS_NS)
#define GPU_WAIT_FIRST_NS (20 * MS_NS)

struct gpu_wait {
    int device;
    uint64_t until_ns, pause_ns;
    uint64_t question; /* to the frameworks (framework.h); 0: none */
    bool awaits_answer;
    uint64_t answer_until_ns;
    struct context_marks marks;
};

/* Begins a wait for what was freed on the device (-1: all). Returns how long the owner may wait for
 * it at once. */
uint64_t gpu_wait_begin(struct gpu_wait *t, int device, uint64_t wait_ns);
/* The wait is for the frameworks' answer to this question too, so long at most. */
void gpu_wait_await_answer(struct gpu_wait *t, uint64_t question, uint64_t wait_ns);
/* Is the work done? Then the wait is over; else when until_ns has come. */
bool gpu_wait_done(struct gpu_wait *t);
bool gpu_wait_over(const struct gpu_wait *t, bool done);
/* When the next look is due. */
uint64_t gpu_wait_next_ns(struct gpu_wait *t);

#endif
