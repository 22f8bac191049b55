/* SPDX-License-Identifier: BSD-2-Clause */
/* An event is a point in the work of a stream or of a whole context. Driver lock. */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "tests/sim/stream.h"

struct CUevent_st {
    uint32_t magic;
    CUcontext context;
    uint64_t context_id;
    unsigned flags;
    bool recorded;
    struct work *work;       /* NULL when all was done at the record */
    struct vector clock;     /* all that the event covers */
    struct capture *capture; /* recorded in this capture, at these nodes */
    uint64_t capture_id;
    struct CUgraphNode_st **nodes;
    size_t node_count;
    struct ipc_event *shared; /* the other process's side, or NULL */
};

/* Checks a handle of the program: CUDA_ERROR_INVALID_HANDLE, CONTEXT_IS_DESTROYED, or the sticky
 * error of its context. */
CUresult event_check(CUevent event);

CUresult event_create(CUcontext context, unsigned flags, CUevent *out);

/* cuStreamWaitEvent */
CUresult event_order_stream(CUevent event, CUstream stream, unsigned flags);

#endif
