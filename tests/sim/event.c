/* SPDX-License-Identifier: BSD-2-Clause */
/* Events on streams, and context events. cuCtxRecordEvent covers all work of a context;
 * cuCtxWaitEvent puts all its future work behind an event. */
#include "tests/sim/event.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/ipc_event.h"
#include "tests/sim/thread.h"

#define MAGIC 0x45564e54u

static struct handles events = {.size = sizeof(struct CUevent_st)};

/* What makes a real driver read memory that it has freed: signal 11 (580.159), also in a thread in
 * which the context was current when it ended. */
static _Noreturn void die(const char *what)
{
    fprintf(stderr, "sim: %s\n", what);
    abort();
}

CUresult event_check(CUevent event)
{
    REFUSE((uintptr_t)event < 4096 || event->magic != MAGIC, INVALID_HANDLE);
    if (context_is(event->context, event->context_id))
        return event->context->error;
    if (!event->context->primary)
        die("an event of a context that has ended is used");
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult event_create(CUcontext context, unsigned flags, CUevent *out)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    bool shared = flags & CU_EVENT_INTERPROCESS;
    REFUSE(out == NULL || (flags & ~known) != 0 || (shared && !(flags & CU_EVENT_DISABLE_TIMING)),
           INVALID_VALUE);
    REFUSE(!context_take(context, config.object_bytes), OUT_OF_MEMORY);
    CUevent event = handles_take(&events);
    struct vector clock = event->clock;
    clock.length = 0;
    *event = (struct CUevent_st){.magic = MAGIC,
                                 .context = context,
                                 .context_id = context->id,
                                 .flags = flags,
                                 .clock = clock};
    if (shared) {
        event->shared = ipc_event_create();
        REFUSE(event->shared == NULL, OUT_OF_MEMORY);
    }
    *out = event;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    CUresult rc = event_check(event);
    if (rc == CUDA_ERROR_INVALID_HANDLE)
        return rc;
    if (context_is(event->context, event->context_id))
        context_give(event->context, config.object_bytes);
    work_assign(&event->work, NULL);
    ipc_event_destroy(event->shared);
    event->shared = NULL;
    free(event->nodes);
    event->nodes = NULL;
    event->magic = 0;
    handles_give(&events, event);
    return rc;
}

/* Makes the event cover all work until `last`. */
static void cover(CUevent event, struct work *last, const struct vector *clock)
{
    work_assign(&event->work, work_done(last) ? NULL : last);
    vector_copy(&event->clock, clock);
    event->recorded = true;
    event->capture = NULL;
}

static CUresult record(CUevent event, CUstream handle)
{
    CUstream stream;
    TRY(event_check(event));
    TRY(stream_resolve(handle, &stream));
    REFUSE(stream->context != event->context, INVALID_HANDLE);
    if (stream->capture != NULL)
        return capture_record(stream, event);
    TRY(capture_implicit(stream));
    if (event->shared != NULL)
        ipc_event_record(event->shared, stream);
    struct work *last = stream_frontier(stream);
    cover(event, last, &stream->clock);
    return CUDA_SUCCESS;
}

CUresult event_order_stream(CUevent event, CUstream stream, unsigned flags)
{
    TRY(event_check(event));
    REFUSE(flags > CU_EVENT_WAIT_EXTERNAL, INVALID_VALUE);
    if (stream->capture != NULL || capture_holds(event))
        return capture_wait(stream, event);
    TRY(capture_implicit(stream));
    if (event->shared != NULL)
        ipc_event_order(event->shared, stream);
    if (event->recorded)
        stream_order(stream, event->work, &event->clock);
    return CUDA_SUCCESS;
}

/* May the host ask about the event now? */
static CUresult askable(CUevent event)
{
    TRY(event_check(event));
    TRY(capture_unsafe());
    return capture_holds(event) ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    TRY(askable(event));
    clock_poll();
    REFUSE(!work_done(event->work) || (event->shared != NULL && !ipc_event_done(event->shared)),
           NOT_READY);
    vector_join(&stream_host_clock, &event->clock);
    return event->context->error;
}

static CUresult synchronize(CUevent event)
{
    TRY(askable(event));
    struct vector seen = {0};
    CUcontext context = event->context;
    vector_copy(&seen, &event->clock);
    CUresult rc = clock_wait(event->work);
    while (rc == CUDA_SUCCESS && event->shared != NULL && !ipc_event_done(event->shared))
        api_sleep(200); /* for the other process; as natively, for ever */
    if (rc == CUDA_SUCCESS)
        vector_join(&stream_host_clock, &seen);
    vector_finish(&seen);
    return rc != CUDA_SUCCESS ? rc : context->error;
}

/* Resolves a context that the program names; NULL is the current one. */
static CUresult named(CUcontext *context)
{
    REFUSE(!config.ctx_events, NOT_SUPPORTED);
    if (*context == NULL)
        *context = thread_current();
    REFUSE(*context != NULL && !context_known(*context), INVALID_CONTEXT);
    return context_usable(*context);
}

static CUresult record_context(CUcontext context, CUevent event)
{
    TRY(event_check(event));
    TRY(named(&context));
    REFUSE(event->context != context, INVALID_HANDLE);
    TRY(capture_context_unsafe(context, false));
    clock_run();
    struct vector clock = {0};
    struct work *last = context_frontier(context, &clock);
    cover(event, last, &clock);
    work_release(last);
    vector_finish(&clock);
    return CUDA_SUCCESS;
}

static CUresult wait_context(CUcontext context, CUevent event)
{
    TRY(named(&context));
    TRY(event_check(event));
    TRY(capture_context_unsafe(context, true));
    if (capture_holds(event))
        return capture_invalidate_event(event);
    if (!event->recorded)
        return CUDA_SUCCESS;
    vector_join(&context->gate_clock, &event->clock);
    if (work_done(event->work))
        return CUDA_SUCCESS;
    struct work *gate = work_create(context, &(struct command){.kind = COMMAND_MARKER});
    work_after(gate, context->gate);
    work_after(gate, event->work);
    work_submit(gate);
    work_release(context->gate);
    context->gate = gate;
    return CUDA_SUCCESS;
}

static CUresult create(unsigned flags, CUevent *out)
{
    if (thread_current_is_stale())
        die("an event is made in a context that had ended before it was made current");
    TRY(context_usable(thread_current()));
    return event_create(thread_current(), flags, out);
}

API(cuEventCreate, (CUevent * out, unsigned flags), create(flags, out))
API(cuEventDestroy_v2, (CUevent event), destroy(event))
API(cuEventQuery, (CUevent event), query(event))
API(cuEventSynchronize, (CUevent event), synchronize(event))
API(cuCtxRecordEvent, (CUcontext context, CUevent event), record_context(context, event))
API(cuCtxWaitEvent, (CUcontext context, CUevent event), wait_context(context, event))
API_BOTH(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream handle),
         record(event, STREAM(handle)))
