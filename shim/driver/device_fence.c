/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See device_fence.h and pool/backend.h. Some calls here would break an open capture. A thread that
 * makes one is a holder (capture.h): it makes the call only while no capture is open, and none
 * begins meanwhile.
 */
#include "shim/driver/device_fence.h"

#include "pool/bits.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/driver/error.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/log.h"

#include <errno.h>
#include <time.h>

bool device_fence_has_events(void)
{
    return real.cuCtxRecordEvent && real.cuCtxWaitEvent && hooks_present(HOOK_cuEventCreate) &&
           hooks_present(HOOK_cuEventQuery) && hooks_present(HOOK_cuEventSynchronize) &&
           hooks_present(HOOK_cuEventDestroy_v2);
}

static struct device_fence *fence_at(struct backend *b, uint64_t fence)
{
    return &device_self(b)->fences[fence];
}

static bool visit_begin(struct call_scope *scope, struct device_backend *d)
{
    atomic_fetch_add(&d->visits, 1);
    if (atomic_load(&d->destruction) == DESTRUCTION_NONE && call_scope_enter(scope, d->ctx))
        return true;
    atomic_fetch_sub(&d->visits, 1);
    return false;
}

static void visit_end(struct call_scope *scope, struct device_backend *d)
{
    call_scope_end(scope);
    atomic_fetch_sub(&d->visits, 1);
}

void device_fence_start(struct device_backend *d)
{
    CUevent event = NULL;
    if (atomic_load(&d->context_events) &&
        real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    atomic_store(&d->spare_event, event);
}

/* Where no event can be made, a fence is a number, which cannot be awaited within a time. So the
 * pool gets none if it has other fences, and the first one has the event that was made when the
 * pool began: on a full device no event can be made. */
int device_fence_create(struct backend *b, uint64_t *fence)
{
    struct device_backend *d = device_self(b);
    struct call_scope scope;
    CUevent event = NULL;
    bool has_event = atomic_load(&d->context_events);
    if (has_event && !visit_begin(&scope, d)) /* before a fence is taken, which none gives back */
        return CUDA_ERROR_DEINITIALIZED;
    if (has_event && real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = atomic_exchange(&d->spare_event, NULL);
    bool fits = !has_event || event || !atomic_load(&d->fence_count);
    unsigned at = fits ? atomic_fetch_add(&d->fence_count, 1) : DEVICE_FENCES;
    fits = at < DEVICE_FENCES;
    if (fits) {
        *fence = at;
        d->fences[at].event = event;
    } else if (event) {
        real.cuEventDestroy_v2(event);
    }
    if (has_event)
        visit_end(&scope, d);
    return fits ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Events end with their context. */
void device_fence_destroy(struct backend *b, uint64_t fence)
{
    struct device_backend *d = device_self(b);
    CUevent event = fence_at(b, fence)->event;
    if (!event || atomic_load(&d->base.gone))
        return;
    struct call_scope scope;
    if (!visit_begin(&scope, d))
        return;
    real.cuEventDestroy_v2(event);
    visit_end(&scope, d);
}

/* By an event of its own. False: the driver has no such events, or cannot make or record one. */
static bool drain_by_event(CUcontext ctx, CUresult *rc)
{
    CUevent event;
    if (!device_fence_has_events() ||
        real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    *rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    bool recorded = true;
    if (capture_hold_off()) {
        *rc = real.cuCtxRecordEvent(ctx, event);
        capture_let_go();
        recorded = *rc == CUDA_SUCCESS || error_is_capture(*rc);
    }
    if (*rc == CUDA_SUCCESS) {
        call_scope_wait_begin();
        *rc = real.cuEventSynchronize(event);
        call_scope_wait_end();
    }
    real.cuEventDestroy_v2(event);
    return recorded;
}

CUresult device_fence_drain(CUcontext ctx)
{
    CUresult rc;
    if (drain_by_event(ctx, &rc))
        return rc;
    if (!capture_hold_off())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    capture_wait_begins();
    call_scope_wait_begin();
    rc = real.cuCtxSynchronize();
    call_scope_wait_end();
    capture_wait_ends();
    capture_let_go();
    return rc;
}

static CUresult record_and_query(CUcontext ctx)
{
    CUevent event;
    CUresult rc = real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = real.cuCtxRecordEvent(ctx, event);
    if (rc == CUDA_SUCCESS)
        rc = real.cuEventQuery(event);
    real.cuEventDestroy_v2(event);
    return rc;
}

CUresult device_fence_ask(CUcontext ctx)
{
    struct call_scope scope;
    CUresult rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!capture_hold_off())
        return rc;
    if (call_scope_enter(&scope, ctx)) {
        rc = record_and_query(ctx);
        call_scope_end(&scope);
    } else {
        rc = CUDA_ERROR_DEINITIALIZED;
    }
    capture_let_go();
    return rc;
}

static enum fence_record draw_number(struct device_backend *d, struct device_fence *f)
{
    atomic_store(&f->number, atomic_fetch_add(&d->numbers_drawn, 1) + 1);
    return FENCE_RECORDED;
}

enum fence_record device_fence_record(struct backend *b, uint64_t fence)
{
    struct device_backend *d = device_self(b);
    struct device_fence *f = fence_at(b, fence);
    if (!f->event || !atomic_load(&d->context_events))
        return draw_number(d, f);
    if (!capture_hold_off())
        return FENCE_REFUSED;
    struct call_scope scope;
    if (!visit_begin(&scope, d)) {
        capture_let_go();
        return FENCE_BARRED; /* the process leaves, or the context is gone */
    }
    CUresult rc = real.cuCtxRecordEvent(d->ctx, f->event);
    visit_end(&scope, d);
    capture_let_go();
    if (error_is_capture(rc))
        return FENCE_BARRED; /* by a capture that we did not see begin */
    if (rc == CUDA_SUCCESS) {
        atomic_store(&f->number, 0);
        return FENCE_RECORDED;
    }
    /* The driver lacks the call, or the context is broken. In a broken context the synchronisation
     * fails as well, so no memory becomes ready any more. */
    log_once(LOG_LEVEL_INFO,
             "cuCtxRecordEvent failed with error %d: from here on fences wait for all work of the "
             "context instead",
             (int)rc);
    atomic_store(&d->context_events, false);
    atomic_store(&b->has_order, false);
    return draw_number(d, f);
}

enum fence_state device_fence_query(struct backend *b, uint64_t fence)
{
    struct device_backend *d = device_self(b);
    struct device_fence *f = fence_at(b, fence);
    uint64_t number = atomic_load(&f->number);
    if (number)
        return number <= atomic_load(&d->numbers_done) ? FENCE_DONE : FENCE_BUSY;
    struct call_scope scope;
    if (!visit_begin(&scope, d)) /* a destruction may fail yet */
        return atomic_load(&d->base.gone) && atomic_load(&d->destruction) != DESTRUCTION_BEGUN
                   ? FENCE_LOST
                   : FENCE_BUSY;
    CUresult rc = real.cuEventQuery(f->event);
    visit_end(&scope, d);
    if (rc == CUDA_SUCCESS)
        return FENCE_DONE;
    return rc == CUDA_ERROR_NOT_READY || error_is_capture(rc) ? FENCE_BUSY : FENCE_LOST;
}

int device_fence_order(struct backend *b, uint64_t fence)
{
    struct device_backend *d = device_self(b);
    struct device_fence *f = fence_at(b, fence);
    if (atomic_load(&f->number))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!capture_hold_off())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct call_scope scope;
    if (!visit_begin(&scope, d)) {
        capture_let_go();
        return CUDA_ERROR_DEINITIALIZED;
    }
    CUresult rc = real.cuCtxWaitEvent(d->ctx, f->event);
    visit_end(&scope, d);
    capture_let_go();
    return (int)rc;
}

/* 1. All work whose number was drawn before the synchronisation began is done after it.
 * 2. timeout_ns limits the wait for captures alone: the driver's own wait has no limit.
 * 3. UINT64_MAX is a free of the program's. It waits for no capture: the capture's end may wait for
 *    the thread that frees. */
static int synchronise(struct device_backend *d, uint64_t timeout_ns)
{
    uint64_t drawn = atomic_load(&d->numbers_drawn), done = atomic_load(&d->numbers_done);
    if (!capture_hold_off_patiently(timeout_ns < UINT64_MAX ? timeout_ns : 0))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct call_scope scope;
    if (!visit_begin(&scope, d)) {
        capture_let_go();
        return CUDA_ERROR_DEINITIALIZED;
    }
    capture_wait_begins();
    call_scope_wait_begin();
    CUresult rc = real.cuCtxSynchronize();
    call_scope_wait_end();
    capture_wait_ends();
    visit_end(&scope, d);
    capture_let_go();
    while (rc == CUDA_SUCCESS && done < drawn &&
           !atomic_compare_exchange_weak(&d->numbers_done, &done, drawn))
        ;
    return (int)rc;
}

/* CUDA has no timed wait, so the thread asks again and again.
 * 1. For WAIT_AWAKE_NS it does not sleep: a sleep takes 60 us or more. Between two questions it
 *    spins for WAIT_LOOK_NS, because a question takes the driver's lock, which other threads need
 *    for their launches.
 * 2. Then it sleeps between two questions, 10 us at first and up to 100 us.
 * Without a limit the driver waits. */
#define WAIT_AWAKE_NS UINT64_C(20000)
#define WAIT_LOOK_NS UINT64_C(1000)
int device_fence_wait(struct backend *b, uint64_t fence, uint64_t timeout_ns)
{
    struct device_backend *d = device_self(b);
    struct device_fence *f = fence_at(b, fence);
    if (atomic_load(&f->number))
        return synchronise(d, timeout_ns);
    if (timeout_ns == UINT64_MAX) {
        struct call_scope scope;
        if (!visit_begin(&scope, d))
            return CUDA_ERROR_DEINITIALIZED;
        call_scope_wait_begin();
        CUresult rc = real.cuEventSynchronize(f->event);
        call_scope_wait_end();
        visit_end(&scope, d);
        return (int)rc;
    }
    uint64_t start_ns = clock_now_ns(), pause_ns = 10000;
    for (;;) {
        enum fence_state s = device_fence_query(b, fence);
        if (s == FENCE_DONE)
            return 0;
        if (s == FENCE_LOST)
            return CUDA_ERROR_UNKNOWN;
        uint64_t waited_ns = clock_now_ns() - start_ns;
        if (waited_ns >= timeout_ns)
            return CUDA_ERROR_NOT_READY;
        if (waited_ns < WAIT_AWAKE_NS) {
            while (clock_now_ns() - start_ns < waited_ns + WAIT_LOOK_NS)
                ;
            continue;
        }
        int saved_errno = errno, cancel = cancel_forbid();
        clock_sleep(pause_ns);
        cancel_allow(cancel);
        errno = saved_errno;
        pause_ns = min_u64(pause_ns * 2, 100000);
    }
}

bool device_fence_await(struct backend *b, uint64_t timeout_ns)
{
    (void)b;
    return capture_await(timeout_ns);
}

void device_fence_drain_all(struct backend *b)
{
    struct device_backend *d = device_self(b);
    struct call_scope scope;
    if (!visit_begin(&scope, d))
        return;
    device_fence_drain(d->ctx);
    visit_end(&scope, d);
}
