/* SPDX-License-Identifier: BSD-2-Clause */
/* Fault injection: which call of which function fails with which code. Driver lock, except
 * fault_armed. */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "tests/sim/api.h"

/* Reads SIM_FAIL. A bad entry is named on stderr and left out. */
void fault_read(void);

/* Adds one fault: "function:N:code" (the N-th call from now), "function:N+:code" (from the N-th
 * on), "function:p0.01:code" (each call with that probability). A '!' after the code makes it
 * sticky in the current context. False when spec cannot be parsed or names no function. */
bool fault_add(const char *spec);

/* Forgets all faults of the function, or all when it is FUNCTION_COUNT. */
void fault_clear(enum function function);

/* True when any fault is known. Any thread, no lock. */
bool fault_armed(void);

/* The code that this call has to fail with, or CUDA_SUCCESS. */
CUresult fault_check(enum function function);

#endif
