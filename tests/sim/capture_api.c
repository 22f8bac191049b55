/* SPDX-License-Identifier: BSD-2-Clause */
/* The exported functions that begin, end and inspect stream captures. */

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/capture_list.h"
#include "tests/sim/context.h"
#include "tests/sim/graph.h"
#include "tests/sim/thread.h"

static uint64_t last_id;

static CUresult begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                      const CUgraphNode *nodes, size_t count)
{
    REFUSE(stream->kind == STREAM_LEGACY, STREAM_CAPTURE_UNSUPPORTED);
    REFUSE(stream->capture != NULL, ILLEGAL_STATE);
    REFUSE(mode > CU_STREAM_CAPTURE_MODE_RELAXED, INVALID_VALUE);
    struct capture *capture = never_null(malloc(sizeof *capture));
    *capture = (struct capture){.mode = mode,
                                .thread_id = thread_self()->id,
                                .id = ++last_id,
                                .graph = graph != NULL ? graph : graph_create(),
                                .origin = stream,
                                .context = stream->context,
                                .next = capture_list};
    capture->graph->borrowed = graph != NULL;
    capture_list = capture;
    stream->capture = capture;
    capture_set_tail(stream, nodes, count);
    return CUDA_SUCCESS;
}

/* Every captured node has to lead to the end of the origin stream. */
static bool joined(struct capture *capture)
{
    for (CUstream stream = capture->context->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture || stream == capture->origin)
            continue;
        for (size_t i = 0; i < stream->capture_tail_count; i++)
            if (!graph_leads(capture->graph, stream->capture_tail[i], capture->origin->capture_tail,
                             capture->origin->capture_tail_count))
                return false;
    }
    return true;
}

static CUresult end(CUstream stream, CUgraph *out)
{
    CUresult rc = CUDA_SUCCESS;
    struct capture *capture = stream->capture;
    if (capture == NULL || out == NULL)
        return capture == NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread_id != thread_self()->id) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUgraph graph = capture->graph;
    if (capture->invalid)
        rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
        rc = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    capture_close(capture);
    if (rc != CUDA_SUCCESS && !graph->borrowed) {
        graph_destroy(graph);
        graph = NULL;
    }
    *out = rc == CUDA_SUCCESS ? graph : NULL;
    return rc;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *out)
{
    struct capture *capture = stream->capture;
    *out = capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
           : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return capture == NULL ? capture_ambiguous(stream) : CUDA_SUCCESS;
}

API_STREAM(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
           (CUstream handle, CUstreamCaptureMode mode), STREAM(handle),
           begin(on, mode, NULL, NULL, 0))
API_STREAM(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
           (CUstream handle, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,
            size_t count, CUstreamCaptureMode mode),
           STREAM(handle), NEEDS(graph != NULL, INVALID_VALUE) begin(on, mode, graph, nodes, count))
API_STREAM(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream handle, CUgraph *out),
           STREAM(handle), end(on, out))
API_STREAM(cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
           (CUstream handle, CUstreamCaptureStatus *out), STREAM(handle),
           NEEDS(out != NULL, INVALID_VALUE) is_capturing(on, out))
