/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers of what begins and ends captures (shim/driver/capture.h), of what makes and destroys
 * streams, and of attributes that change the order of work (shim/context/stream_watch.h). No
 * state. */
#include "shim/entry/stream.h"

#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/park/gate.h"
#include "shim/process/cancel.h"
#include "shim/process/state.h"

/* These captures no longer count as open, so the library can record fences again. A pool needs them
 * to leave its single stream. If another capture is open, its end will wake the control thread. */
void entry_captures_closed(size_t count)
{
    for (size_t i = 0; i < count; i++)
        stream_watch_capture_closed();
    if (count && !capture_open())
        control_capture_closed();
}

static void announce(void)
{
    stream_watch_capture_opens();
    /* Memory that was freed before need not wait for the capture: natively it is free by now. */
    if (state_is_on() && !capture_open())
        context_for_each_pool(pool_seal);
    capture_begins();
}

static CUstream named_stream(CUstream stream, bool per_thread)
{
    if (!stream)
        return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    return stream;
}

/* Captured work is submitted later, by a graph launch. A use, so a wake meets no capture. */
#define BEGIN(stream, per_thread, call)                                                            \
    do {                                                                                           \
        if (library_is_off())                                                                      \
            return (call);                                                                         \
        struct gate_use use_;                                                                      \
        CUresult rc_ = gate_use_begin(&use_);                                                      \
        if (rc_ != CUDA_SUCCESS)                                                                   \
            return rc_;                                                                            \
        int cancel_ = cancel_forbid();                                                             \
        announce();                                                                                \
        rc_ = (call);                                                                              \
        if (rc_ == CUDA_SUCCESS) {                                                                 \
            capture_began(named_stream(stream, per_thread));                                       \
        } else {                                                                                   \
            capture_failed();                                                                      \
            entry_captures_closed(1);                                                              \
        }                                                                                          \
        gate_use_end(&use_);                                                                       \
        cancel_allow(cancel_);                                                                     \
        return rc_;                                                                                \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(stream, false, real.cuStreamBeginCapture(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(stream, true, real.cuStreamBeginCapture_ptsz(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(stream, false, real.cuStreamBeginCapture_v2(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(stream, true, real.cuStreamBeginCapture_v2_ptsz(stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                     const CUgraphEdgeData *edges, size_t num_deps,
                                     CUstreamCaptureMode mode)
{
    BEGIN(stream, false,
          real.cuStreamBeginCaptureToGraph(stream, graph, deps, edges, num_deps, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                          const CUgraphEdgeData *edges, size_t num_deps,
                                          CUstreamCaptureMode mode)
{
    BEGIN(stream, true,
          real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, deps, edges, num_deps, mode));
}

/* Some failures end the capture (it was invalidated), some do not (wrong thread). */
#define END(stream, per_thread, call)                                                              \
    do {                                                                                           \
        if (library_is_off())                                                                      \
            return (call);                                                                         \
        int cancel_ = cancel_forbid();                                                             \
        CUstream named_ = named_stream(stream, per_thread);                                        \
        uint64_t number_ = capture_number(named_);                                                 \
        CUresult rc_ = (call);                                                                     \
        if (rc_ == CUDA_SUCCESS || !capture_goes_on(named_, rc_))                                  \
            entry_captures_closed(capture_ended(number_));                                         \
        cancel_allow(cancel_);                                                                     \
        return rc_;                                                                                \
    } while (0)

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    END(stream, false, real.cuStreamEndCapture(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    END(stream, true, real.cuStreamEndCapture_ptsz(stream, graph));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback callback, void *user_data)
{
    BEGIN(stream, false,
          real.cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, user_data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                            CUgraph graph, CUgraphRecaptureCallback callback,
                                            void *user_data)
{
    BEGIN(stream, true,
          real.cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, user_data));
}

/* The work goes to a command list of a graphics API, so no stream says when it runs. */
CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *params)
{
    stream_watch_note_unseen();
    BEGIN(stream, false, real.cuStreamBeginCaptureToCig(stream, params));
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams *params)
{
    stream_watch_note_unseen();
    BEGIN(stream, true, real.cuStreamBeginCaptureToCig_ptsz(stream, params));
}

/* A call that ends the stream's capture, if there is one and the call succeeds. */
static CUresult end_with(CUresult (*how)(CUstream), CUstream stream, bool per_thread)
{
    if (library_is_off())
        return how(stream);
    int cancel = cancel_forbid();
    uint64_t number = capture_number(named_stream(stream, per_thread));
    CUresult rc = how(stream);
    if (rc == CUDA_SUCCESS)
        entry_captures_closed(capture_ended(number));
    cancel_allow(cancel);
    return rc;
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    return end_with(real.cuStreamEndCaptureToCig, stream, false);
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    return end_with(real.cuStreamEndCaptureToCig_ptsz, stream, true);
}

static CUresult destroy_stream(CUresult (*how)(CUstream), CUstream stream)
{
    int cancel = cancel_forbid();
    stream_watch_forget(stream);
    CUresult rc = end_with(how, stream, false);
    cancel_allow(cancel);
    return rc;
}

CUresult cuStreamDestroy(CUstream stream)
{
    return destroy_stream(real.cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy_stream(real.cuStreamDestroy_v2, stream);
}

static void made(CUresult rc)
{
    if (rc == CUDA_SUCCESS && (atomic_load(&pool_watch) & POOL_WATCH_STREAMS))
        stream_watch_may_be_single();
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult rc = retry_cuStreamCreate(stream, flags);
    made(rc);
    return rc;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CUresult rc = retry_cuStreamCreateWithPriority(stream, flags, priority);
    made(rc);
    return rc;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    CUresult rc = retry_cuGreenCtxStreamCreate(stream, green, flags, priority);
    if (rc == CUDA_SUCCESS)
        single_stream_disable();
    return rc;
}

/* Before the driver: a launch beside this call may be the first that has the attribute. */
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value)
{
    if (!stream_watch_keeps_order(id))
        single_stream_disable();
    return real.cuStreamSetAttribute(stream, id, value);
}

CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID id,
                                   const CUstreamAttrValue *value)
{
    if (!stream_watch_keeps_order(id))
        single_stream_disable();
    return real.cuStreamSetAttribute_ptsz(stream, id, value);
}

/* A node with leave to start early does so within its graph. */
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                       const CUkernelNodeAttrValue *value)
{
    if (!stream_watch_keeps_order(id) &&
        id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        single_stream_disable();
    return real.cuGraphKernelNodeSetAttribute(node, id, value);
}
