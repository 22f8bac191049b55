/* SPDX-License-Identifier: BSD-2-Clause */
/* Fault injection: which call of which function fails with which code. Driver lock, except
 * fault_armed. */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "tests/sim/api.h"

/* Reads SIM_FAIL. Names a bad entry on stderr and leaves it out. */
void fault_read(void);

/* Adds a fault: "function:N:code" (the N-th call from now), "function:N+:code" (from the N-th on)
 * or "function:p0.01:code" (each call with that probability). With a '!' after the code the error
 * sticks to the current context. Returns false if spec cannot be parsed or names no function. */
bool fault_add(const char *spec);

/* Forgets the faults of the function, or all faults if it is FUNCTION_COUNT. */
void fault_clear(enum function function);

/* There is a fault. Any thread, no lock. */
bool fault_armed(void);

/* Returns the code that this call has to fail with, or CUDA_SUCCESS. */
CUresult fault_check(enum function function);

#endif
