/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What an allocation, or a call that is made again (shim/entry/retry.h), does after the driver had
 * no memory for it, step by step (OOM_STEP). The thread that allocates calls the driver for the
 * pool (shim/driver/device.c), so those calls tell the steps: the pool knows nothing of traces, and
 * its counters are all threads' together.
 *
 * The state is the thread's own. No lock. A thread that leaves an allocation by a jump records the
 * steps of what it does next as that one's.
 */
#ifndef SHIM_TRACE_STEPS_H
#define SHIM_TRACE_STEPS_H

#include "shim/trace/trace.h"

#include <stdbool.h>
#include <stdint.h>

/* pool/alloc.c and shim/entry/retry.h have their order. That other processes are asked for memory
 * has a record of its own (LEND_ASK). */
enum trace_step {
    STEP_NONE,
    STEP_REFUSED, /* no other one counts before this one */
    STEP_ORDERED,
    STEP_RELEASED,
    STEP_WAITED,
    STEP_OWN_CALL,
    STEP_AGAIN,
    STEP_SERVED,
};

/* The thread allocates so many bytes (0: not known), until the end. served: with success. */
void trace_steps_begin(uint64_t size_bytes);
void trace_steps_end(bool served);
/* Between the two? A call that is made again (shim/entry/retry.h) may be part of an allocation. */
bool trace_steps_are_begun(void);
/* Records the last step of a call that was made again, and is no part of an allocation. */
void trace_steps_served(uint64_t size_bytes);
/* Records the step, if the thread allocates, was refused, and its last step was another one. */
void trace_steps_take(enum trace_step step);
#define TRACE_STEP(step)                                                                           \
    do {                                                                                           \
        if (trace_is_on())                                                                         \
            trace_steps_take(STEP_##step);                                                         \
    } while (0)

#endif
