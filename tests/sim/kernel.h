/* SPDX-License-Identifier: BSD-2-Clause */
/* The effects of the kernels of kernels.def. args are the parameters, widened to 64 bits. Driver
 * lock. */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "tests/sim/command.h"

/* Returns KERNEL_COUNT if the simulator does not know the name. */
enum kernel kernel_by_name(const char *name);
const char *kernel_name(enum kernel kernel);
unsigned kernel_parameter_count(enum kernel kernel);
unsigned kernel_parameter_bytes(enum kernel kernel, unsigned index);

unsigned kernel_accesses(enum kernel kernel, const uint64_t *args, struct access *out);
uint64_t kernel_busy_ns(enum kernel kernel, const uint64_t *args);
CUresult kernel_run(enum kernel kernel, const uint64_t *args, struct CUctx_st *context);

#endif
