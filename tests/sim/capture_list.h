/* SPDX-License-Identifier: BSD-2-Clause */
/* What capture.c and capture_api.c share: the open captures, and a stream's part in one. Driver
 * lock. */
#ifndef SIM_CAPTURE_LIST_H
#define SIM_CAPTURE_LIST_H

#include "tests/sim/capture.h"

extern struct capture *capture_list;

/* Makes the next captured node of the stream depend on these nodes. Copies them. */
void capture_set_tail(CUstream stream, CUgraphNode const *nodes, size_t count);
/* Ends the capture for all its streams and frees it. The graph stays. */
void capture_close(struct capture *capture);

#endif
