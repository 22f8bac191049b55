/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See capture.h. The list of capturing streams has a lock of its own, never held over a driver call.
 */
#include "shim/driver/capture.h"

#include "pool/bits.h"
#include "pool/host.h"
#include "pool/spin.h"
#include "shim/process/cancel.h"
#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/process/state.h"
#include "shim/context/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CAPTURES_FIRST = 256 };

/* A stream is known by its handle, until it is destroyed: then another thread may be given the handle. The per-thread
 * default stream is known by its thread too. */
struct capture {
    CUcontext ctx;   /* the stream's, whatever was current; a green context's stream has that one */
    CUcontext owner; /* of a green context: the primary one; else ctx */
    CUstream stream;
    pthread_t thread;
    uint64_t number; /* 0: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture first_captures[CAPTURES_FIRST], *captures = first_captures;
static size_t captures_size = CAPTURES_FIRST;
static uint64_t last_number;
static atomic_int open_count, holders;
static atomic_int waiters; /* among the holders: who waits for GPU work */

/* A call that waits has begun after so long, unless its thread was not run. */
#define BEGIN_NS UINT64_C(20000000)

bool capture_open(void)
{
    return atomic_load(&open_count) > 0;
}

bool capture_hold_off(void)
{
    atomic_fetch_add(&holders, 1);
    if (atomic_load(&open_count) == 0)
        return true;
    atomic_fetch_sub(&holders, 1);
    return false;
}

void capture_let_go(void)
{
    atomic_fetch_sub(&holders, 1);
}

void capture_wait_begins(void)
{
    atomic_fetch_add(&waiters, 1);
}

void capture_wait_ends(void)
{
    atomic_fetch_sub(&waiters, 1);
}

static void pause_ns(uint64_t ns)
{
    int saved_errno = errno, cancel = cancel_forbid();
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    cancel_allow(cancel);
    errno = saved_errno;
}

static bool own_is_open(void)
{
    bool own = false;
    pthread_mutex_lock(&lock);
    for (const struct capture *c = captures; c < captures + captures_size && !own; c++)
        own = c->number && pthread_equal(c->thread, pthread_self());
    pthread_mutex_unlock(&lock);
    return own;
}

bool capture_await(uint64_t timeout_ns)
{
    uint64_t start_ns = state_clock_ns(), wait_ns = 10000;
    while (capture_open()) {
        if (own_is_open() || state_clock_ns() - start_ns >= timeout_ns)
            return false;
        pause_ns(wait_ns);
        wait_ns = min_u64(wait_ns * 2, 1000000);
    }
    return true;
}

/* Another one may begin between the two, hence again. */
bool capture_hold_off_patiently(uint64_t timeout_ns)
{
    uint64_t start_ns = state_clock_ns();
    while (!capture_hold_off()) {
        uint64_t waited_ns = state_clock_ns() - start_ns;
        if (waited_ns >= timeout_ns || !capture_await(timeout_ns - waited_ns))
            return false;
    }
    return true;
}

/* Waiters are counted among the holders, before and after, so that of two looks one may miss a
 * holder, but not take a waiter for none. Others who come from here on see the capture and do not
 * hold it off. */
static void opening(void)
{
    uint64_t start_ns = 0;
    /* What was freed before need not wait for the capture's end: natively it is free by now. */
    if (state_is_on() && !capture_open())
        context_for_each_pool(pool_seal);
    atomic_fetch_add(&open_count, 1);
    for (unsigned turn = 0; atomic_load(&holders) > 0; turn++) {
        if (atomic_load(&holders) > atomic_load(&waiters))
            start_ns = 0; /* those are through in no time */
        else if (!start_ns)
            start_ns = state_clock_ns();
        else if (state_clock_ns() - start_ns >= BEGIN_NS)
            return;
        spin_pause(turn);
    }
}

/* One stream may be enough only when fences can be recorded again, with which to leave it. */
static void closed(void)
{
    bool last = atomic_fetch_sub(&open_count, 1) == 1;
    stream_capture_closed();
    if (last)
        control_capture_closed();
}

static CUstream name_of(CUstream stream, bool per_thread)
{
    if (!stream)
        return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    return stream;
}

static struct capture *find(CUcontext ctx, CUstream stream)
{
    for (struct capture *c = captures; c < captures + captures_size; c++)
        if (c->number && c->stream == stream &&
            (stream != CU_STREAM_PER_THREAD || (c->ctx == ctx && pthread_equal(c->thread, pthread_self()))))
            return c;
    return NULL;
}

static CUcontext current(void)
{
    CUcontext ctx = NULL;
    if (real.cuCtxGetCurrent)
        real.cuCtxGetCurrent(&ctx);
    return ctx;
}

/* Of the stream's capture, to be asked for before the driver ends the capture or the stream; 0: there is none. */
static uint64_t number_of(CUstream stream)
{
    if (!capture_open())
        return 0;
    CUcontext ctx = current();
    pthread_mutex_lock(&lock);
    const struct capture *c = find(ctx, stream);
    uint64_t number = c ? c->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

/* The capture is over. Its end may be seen twice (end, then destroy). */
static void forget(uint64_t number)
{
    bool over = false;
    if (!number)
        return;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c < captures + captures_size && !over; c++)
        if (c->number == number) {
            c->number = 0;
            over = true;
        }
    pthread_mutex_unlock(&lock);
    if (over)
        closed();
}

void capture_forget(CUcontext ctx)
{
    int gone = 0;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c < captures + captures_size; c++)
        if (c->number && (c->ctx == ctx || c->owner == ctx)) {
            c->number = 0;
            gone++;
        }
    pthread_mutex_unlock(&lock);
    while (gone--)
        closed();
}

size_t capture_contexts(CUcontext *ctx, size_t max)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (const struct capture *c = captures; c < captures + captures_size; c++) {
        bool known = !c->number;
        for (size_t i = 0; i < count && !known; i++)
            known = ctx[i] == c->owner;
        if (!known && count < max)
            ctx[count++] = c->owner;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* Whose stream it is, which need not be the current context. The driver has just taken the handle,
 * so that it may be asked about it; for the default streams it tells of the current one. */
static CUcontext context_of(CUstream stream, CUcontext *owner)
{
    CUcontext ctx = NULL;
    CUgreenCtx green = NULL;
    if (!real.cuStreamGetCtx || real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS || !ctx)
        ctx = current();
    if (!real.cuStreamGetCtx_v2 || stream == CU_STREAM_PER_THREAD ||
        real.cuStreamGetCtx_v2(stream, owner, &green) != CUDA_SUCCESS || !green || !*owner)
        *owner = ctx;
    return ctx;
}

/* Lock held. NULL: no host memory. */
static struct capture *free_row(void)
{
    for (struct capture *c = captures; c < captures + captures_size; c++)
        if (!c->number)
            return c;
    size_t size = captures_size, bytes = size * sizeof *captures;
    struct capture *more = host_pages(2 * bytes);
    if (!more)
        return NULL;
    memcpy(more, captures, bytes);
    if (captures != first_captures)
        host_pages_free(captures, bytes);
    captures = more;
    captures_size = 2 * size;
    return captures + size;
}

/* Without host memory for its row a capture stays counted for ever: then no fence is recorded any more, and
 * whoever waits for the end of captures waits in vain, up to his limit. */
static void remember(CUstream stream)
{
    CUcontext owner, ctx = context_of(stream, &owner);
    pthread_mutex_lock(&lock);
    struct capture *c = free_row();
    if (c)
        *c = (struct capture){ctx, owner, stream, pthread_self(), ++last_number};
    pthread_mutex_unlock(&lock);
}

static bool still_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return real.cuStreamIsCapturing &&
           real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Captured work is submitted later, by a graph launch. */
#define BEGIN(stream, per_thread, call)                                                            \
    do {                                                                                           \
        int cancel_ = cancel_forbid();                                                             \
        stream_capture_opens();                                                                    \
        opening();                                                                                 \
        CUresult rc_ = (call);                                                                     \
        if (rc_ == CUDA_SUCCESS)                                                                   \
            remember(name_of(stream, per_thread));                                                 \
        else                                                                                       \
            closed();                                                                              \
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
        int cancel_ = cancel_forbid();                                                             \
        CUstream named_ = name_of(stream, per_thread);                                             \
        uint64_t number_ = number_of(named_);                                                      \
        CUresult rc_ = (call);                                                                     \
        if (rc_ == CUDA_SUCCESS || !still_capturing(named_))                                       \
            forget(number_);                                                                       \
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
    BEGIN(stream, false, real.cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, user_data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback callback, void *user_data)
{
    BEGIN(stream, true,
          real.cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, user_data));
}

/* Into a command list of a graphics API, which submits it: no stream says when that runs. */
CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *params)
{
    stream_give_up();
    BEGIN(stream, false, real.cuStreamBeginCaptureToCig(stream, params));
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams *params)
{
    stream_give_up();
    BEGIN(stream, true, real.cuStreamBeginCaptureToCig_ptsz(stream, params));
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    int cancel = cancel_forbid();
    uint64_t number = number_of(name_of(stream, false));
    CUresult rc = real.cuStreamEndCaptureToCig(stream);
    if (rc == CUDA_SUCCESS)
        forget(number);
    cancel_allow(cancel);
    return rc;
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    int cancel = cancel_forbid();
    uint64_t number = number_of(name_of(stream, true));
    CUresult rc = real.cuStreamEndCaptureToCig_ptsz(stream);
    if (rc == CUDA_SUCCESS)
        forget(number);
    cancel_allow(cancel);
    return rc;
}

static CUresult destroy(CUresult (*how)(CUstream), CUstream stream)
{
    int cancel = cancel_forbid();
    uint64_t number = number_of(stream);
    stream_forget(stream);
    CUresult rc = how(stream);
    if (rc == CUDA_SUCCESS)
        forget(number);
    cancel_allow(cancel);
    return rc;
}

CUresult cuStreamDestroy(CUstream stream)
{
    return destroy(real.cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy(real.cuStreamDestroy_v2, stream);
}
