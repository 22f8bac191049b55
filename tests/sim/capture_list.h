/* SPDX-License-Identifier: BSD-2-Clause */
/* What capture.c and capture_api.c share: the open captures and a stream's part in one. Driver
 * lock. */
#ifndef SIM_CAPTURE_LIST_H
#define SIM_CAPTURE_LIST_H

#include "tests/sim/capture.h"

extern struct capture *capture_list;

/* The next captured node of the stream depends on these nodes. Copies them. */
void capture_set_tail(CUstream stream, CUgraphNode const *nodes, size_t count);
/* The stream is no longer part of its capture. */
void capture_leave(CUstream stream);
/* Ends the capture for all its streams and frees it; the graph stays. */
void capture_close(struct capture *capture);

#endif
