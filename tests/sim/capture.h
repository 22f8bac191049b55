/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures: which calls they forbid, which calls invalidate them, and how work becomes graph
 * nodes. Driver lock. */
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
 * pages, cuMemFree of pages, event queries). Where its capture mode and the open captures forbid
 * that: invalidates them and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. */
CUresult capture_unsafe(void);

/* The same for calls that no stream of the context may be capturing under, whatever the mode; nor, if
 * green_too, one of its green contexts. */
CUresult capture_context_unsafe(CUcontext context, bool green_too);

/* The same for waiting for a stream, or asking whether it is done. */
CUresult capture_stream_unsafe(CUstream stream);

/* Work for the legacy stream while a blocking stream of its context captures, which would depend on
 * uncaptured work: invalidates the capture and returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT. */
CUresult capture_implicit(CUstream stream);
/* The same for who only asks: it spoils nothing. */
CUresult capture_ambiguous(CUstream stream);

/* The stream captures: the command becomes a node behind the stream's captured tail. */
CUresult capture_add(CUstream stream, const struct command *command);

/* Record on a capturing stream; wait of a stream for an event where either belongs to a capture. */
CUresult capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event);

/* The event was last recorded in a capture that is still open. */
bool capture_holds(CUevent event);
/* Invalidates that capture and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. */
CUresult capture_invalidate_event(CUevent event);

/* The stream or context goes away: captures that it is part of become invalid. */
void capture_forget_stream(CUstream stream);
void capture_forget_context(CUcontext context);

#endif
