/* SPDX-License-Identifier: BSD-2-Clause */
/* Submission of copies of any shape. Driver lock. */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "tests/sim/stream.h"

/* What the function promises of its addresses. Without a promise the address itself tells. */
enum copy_flags {
    COPY_FROM_HOST = 1 << 0,
    COPY_TO_HOST = 1 << 1,
    COPY_FROM_DEVICE = 1 << 2,
    COPY_TO_DEVICE = 1 << 3,
    COPY_SYNCHRONOUS = 1 << 4,
    COPY_PEER = 1 << 5, /* each side's context is named */
};

/* request: all but dst_host, src_host, peer and staging. CUDA_ERROR_INVALID_VALUE when an address
 * that has to be known is not, or is mapped memory that the current device has no access to. */
CUresult copy_submit(const struct copy *request, enum copy_flags flags, CUstream stream);

/* The copy of a graph node. Its addresses are looked at again when it runs. */
CUresult copy_command(struct command *out, const CUDA_MEMCPY3D *params);

/* Decides for each side whether it is the host's; checks that the addresses are known. */
CUresult copy_prepare(struct copy *copy, enum copy_flags flags);

#endif
