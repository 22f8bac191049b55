/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures: the calls that they forbid, the calls that invalidate them, and how work becomes
 * graph nodes. Driver lock. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "tests/sim/event.h"

struct capture {
    CUstreamCaptureMode mode;
    uint64_t thread_id;
    uint64_t id;
    CUgraph graph;
    CUstream origin;
    CUcontext context;
    bool invalid;
    struct capture *next;
};

/* The calling thread is about to make a call that is unsafe during captures (cuMemAlloc of new
 * pages, cuMemFree of pages, event queries). If its capture mode and an open capture forbid the
 * call, this function invalidates the capture and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. */
CUresult capture_unsafe(void);

/* The same for a call that no stream of the context may be capturing under, in any mode. With
 * green_too this covers the green contexts of the context. */
CUresult capture_context_unsafe(CUcontext context, bool green_too);

/* The same for a call that waits for a stream or asks whether it is done. */
CUresult capture_stream_unsafe(CUstream stream);

/* Work on the legacy stream would depend on uncaptured work if a blocking stream of its context
 * captures. Invalidates such a capture and returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT. */
CUresult capture_implicit(CUstream stream);
/* The same, then capture_unsafe: for a call that waits for the work that it submits. */
CUresult capture_synchronous(CUstream stream);
/* The same for a query, which does not invalidate the capture. */
CUresult capture_ambiguous(CUstream stream);

/* Adds the command to the stream's capture, as a node behind the captured tail. */
CUresult capture_add(CUstream stream, const struct command *command);

/* A record on a capturing stream; a wait of a stream for an event, where one of them belongs to a
 * capture. */
CUresult capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event);

/* The event was last recorded in a capture that is still open. */
bool capture_holds(CUevent event);
/* Invalidates that capture and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. */
CUresult capture_invalidate_event(CUevent event);

/* The stream or the context ends. Captures that it is part of become invalid. */
void capture_forget_stream(CUstream stream);
void capture_forget_context(CUcontext context);

#endif
