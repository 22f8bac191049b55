/* SPDX-License-Identifier: BSD-2-Clause */
/* Thread-local state, and the calls that touch nothing else: current contexts and the capture
 * mode. */
#include "tests/sim/thread.h"

#include <pthread.h>
#include <stdlib.h>

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/context.h"
#include "tests/sim/stream.h"

static _Thread_local struct thread *self;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t last_id;

static void at_exit(void *argument)
{
    struct thread *thread = argument;
    api_lock();
    for (unsigned i = 0; i < thread->stream_count; i++) {
        struct thread_stream *row = &thread->streams[i];
        if (context_is(row->context, row->context_id))
            stream_destroy(row->stream);
    }
    api_unlock();
    free(thread->streams);
    free(thread);
    self = NULL;
}

static void create_key(void)
{
    pthread_key_create(&key, at_exit);
}

struct thread *thread_self(void)
{
    if (self == NULL) {
        pthread_once(&once, create_key);
        self = never_null(calloc(1, sizeof *self));
        self->id = atomic_fetch_add(&last_id, 1) + 1;
        self->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        pthread_setspecific(key, self);
    }
    return self;
}

CUcontext thread_current(void)
{
    return self != NULL && self->depth > 0 ? self->stack[self->depth - 1] : NULL;
}

CUresult thread_stream(CUcontext context, CUstream *out)
{
    struct thread *thread = thread_self();
    struct thread_stream *row = NULL;
    for (unsigned i = 0; i < thread->stream_count && row == NULL; i++)
        if (thread->streams[i].context == context)
            row = &thread->streams[i];
    if (row == NULL) {
        struct thread_stream *streams =
            never_null(realloc(thread->streams, (thread->stream_count + 1) * sizeof *streams));
        thread->streams = streams;
        row = &streams[thread->stream_count++];
        *row = (struct thread_stream){.context = context};
    }
    if (row->context_id != context->id) {
        row->context_id = context->id;
        row->stream = stream_create(context, STREAM_PER_THREAD);
    }
    *out = row->stream;
    return CUDA_SUCCESS;
}

/* The driver takes the handle of a context that has ended, and answers 0 (580.159). It reads what
 * it has freed in cuEventCreate, then. A context that was current when it ended stays harmless. */
static void note_stale(struct thread *thread, CUcontext context)
{
    if (!context->alive && !context->primary && thread_current() != context)
        thread->stale = context;
}

bool thread_current_is_stale(void)
{
    CUcontext now = thread_current();
    return now != NULL && !now->alive && thread_self()->stale == now;
}

static CUresult push_current(CUcontext context)
{
    struct thread *thread = thread_self();
    REFUSE(context == NULL || !context_known(context), INVALID_CONTEXT);
    REFUSE(thread->depth == THREAD_CONTEXTS_MAX, INVALID_VALUE);
    note_stale(thread, context);
    thread->stack[thread->depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop_current(CUcontext *out)
{
    struct thread *thread = thread_self();
    REFUSE(thread->depth == 0, INVALID_CONTEXT);
    CUcontext context = thread->stack[--thread->depth];
    if (out != NULL)
        *out = context;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    struct thread *thread = thread_self();
    if (context == NULL) {
        if (thread->depth > 0)
            thread->depth--;
        return CUDA_SUCCESS;
    }
    REFUSE(!context_known(context), INVALID_CONTEXT);
    note_stale(thread, context);
    if (thread->depth == 0)
        thread->depth = 1;
    thread->stack[thread->depth - 1] = context;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    REFUSE(mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED, INVALID_VALUE);
    CUstreamCaptureMode old = thread_self()->mode;
    thread_self()->mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

API_UNLOCKED(cuCtxPushCurrent_v2, (CUcontext context), push_current(context))
API_UNLOCKED(cuCtxPopCurrent_v2, (CUcontext * out), pop_current(out))
API_UNLOCKED(cuCtxSetCurrent, (CUcontext context), set_current(context))
API_UNLOCKED(cuCtxGetCurrent, (CUcontext * out),
             NEEDS(out != NULL, INVALID_VALUE) GIVE(out, thread_current()))
API_UNLOCKED(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), exchange_mode(mode))
