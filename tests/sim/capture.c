/* SPDX-License-Identifier: BSD-2-Clause */
/* The rules of capture.h. capture_api.c begins and ends captures. */
#include "tests/sim/capture.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/capture_list.h"
#include "tests/sim/context.h"
#include "tests/sim/graph.h"
#include "tests/sim/thread.h"

struct capture *capture_list;

CUresult capture_unsafe(void)
{
    if (capture_list == NULL)
        return CUDA_SUCCESS;
    struct thread *thread = thread_self();
    CUresult rc = CUDA_SUCCESS;
    if (thread->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct capture *capture = capture_list; capture != NULL; capture = capture->next) {
        bool mine = capture->thread_id == thread->id;
        bool forbids = mine ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                            : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                  thread->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!forbids)
            continue;
        capture->invalid = true;
        rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return rc;
}

CUresult capture_context_unsafe(CUcontext context, bool green_too)
{
    CUresult rc = CUDA_SUCCESS;
    for (struct capture *capture = capture_list; capture != NULL; capture = capture->next) {
        if (capture->context != context && !(green_too && capture->context->parent == context))
            continue;
        capture->invalid = true;
        rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return rc;
}

CUresult capture_stream_unsafe(CUstream stream)
{
    if (stream->capture == NULL)
        return capture_implicit(stream);
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult implicit(CUstream stream, bool invalidates)
{
    CUresult rc = CUDA_SUCCESS;
    if (capture_list == NULL || stream->kind != STREAM_LEGACY)
        return rc;
    for (CUstream other = stream->context->streams; other != NULL; other = other->next) {
        if (other->capture == NULL || other->kind == STREAM_NON_BLOCKING)
            continue;
        other->capture->invalid |= invalidates;
        rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return rc;
}

CUresult capture_implicit(CUstream stream)
{
    return implicit(stream, true);
}

CUresult capture_synchronous(CUstream stream)
{
    TRY(capture_implicit(stream));
    return capture_unsafe();
}

CUresult capture_ambiguous(CUstream stream)
{
    return implicit(stream, false);
}

void capture_set_tail(CUstream stream, CUgraphNode const *nodes, size_t count)
{
    CUgraphNode *copy = never_null(malloc((count > 0 ? count : 1) * sizeof *copy));
    if (count > 0)
        memcpy(copy, nodes, count * sizeof *copy);
    free(stream->capture_tail);
    stream->capture_tail = copy;
    stream->capture_tail_count = count;
}

static void leave(CUstream stream)
{
    stream->capture = NULL;
    free(stream->capture_tail);
    stream->capture_tail = NULL;
    stream->capture_tail_count = 0;
}

CUresult capture_add(CUstream stream, const struct command *command)
{
    struct capture *capture = stream->capture;
    REFUSE(capture->invalid, STREAM_CAPTURE_INVALIDATED);
    CUgraphNode node =
        graph_add(capture->graph, command, stream->capture_tail, stream->capture_tail_count);
    capture_set_tail(stream, &node, 1);
    return CUDA_SUCCESS;
}

CUresult capture_record(CUstream stream, CUevent event)
{
    REFUSE(stream->capture->invalid, STREAM_CAPTURE_INVALIDATED);
    size_t bytes = stream->capture_tail_count * sizeof *event->nodes;
    free(event->nodes);
    event->nodes = never_null(malloc(bytes + 1));
    memcpy(event->nodes, stream->capture_tail, bytes);
    event->node_count = stream->capture_tail_count;
    event->capture = stream->capture;
    event->capture_id = stream->capture->id;
    return CUDA_SUCCESS;
}

bool capture_holds(CUevent event)
{
    if (event->capture == NULL)
        return false;
    for (struct capture *capture = capture_list; capture != NULL; capture = capture->next)
        if (capture == event->capture && capture->id == event->capture_id)
            return true;
    return false;
}

CUresult capture_invalidate_event(CUevent event)
{
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_wait(CUstream stream, CUevent event)
{
    struct capture *ours = stream->capture, *theirs = capture_holds(event) ? event->capture : NULL;
    if (theirs == NULL) {
        /* A node cannot depend on work outside of its graph. */
        ours->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (ours != NULL && ours != theirs) {
        ours->invalid = theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    REFUSE(theirs->invalid, STREAM_CAPTURE_INVALIDATED);
    if (stream->kind == STREAM_LEGACY) {
        theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    size_t before = stream->capture_tail_count, count = before;
    CUgraphNode *nodes = never_null(malloc((before + event->node_count + 1) * sizeof *nodes));
    if (before > 0)
        memcpy(nodes, stream->capture_tail, before * sizeof *nodes);
    for (size_t i = 0; i < event->node_count; i++) {
        size_t j = 0;
        while (j < count && nodes[j] != event->nodes[i])
            j++;
        if (j == count)
            nodes[count++] = event->nodes[i];
    }
    stream->capture = theirs;
    capture_set_tail(stream, nodes, count);
    free(nodes);
    return CUDA_SUCCESS;
}

void capture_close(struct capture *capture)
{
    struct capture **link = &capture_list;
    for (CUstream stream = capture->context->streams; stream != NULL; stream = stream->next)
        if (stream->capture == capture)
            leave(stream);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
}

void capture_forget_stream(CUstream stream)
{
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return;
    capture->invalid = true;
    leave(stream);
    if (capture->origin == stream)
        capture_close(capture);
}

void capture_forget_context(CUcontext context)
{
    for (struct capture *capture = capture_list, *next; capture != NULL; capture = next) {
        next = capture->next;
        if (capture->context == context)
            capture_close(capture);
    }
}
