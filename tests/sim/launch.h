/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernel launches as commands. Driver lock. */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "tests/sim/command.h"

/* shape: grid x, y, z, block x, y, z. The parameters are read from params or, when that is NULL,
 * from extra, now. CUDA_ERROR_INVALID_HANDLE, INVALID_VALUE, or NOT_SUPPORTED for an entry that the
 * simulator does not know. */
CUresult launch_command(struct command *out, CUcontext context, CUfunction handle,
                        const unsigned *shape, void **params, void **extra);

#endif
