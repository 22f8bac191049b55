/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that end contexts, and those that keep contexts alive. The end of a context
 * frees its allocations without a call for each. An arena's memory outlives its context (measured),
 * so the library gives it back here. First the pool is closed to new requests (destroy_begins,
 * release_begins). Then the driver ends the context and all its work. Then the memory goes back
 * (finish). The argument is in shim/context/context.h. No lock is held over a driver call.
 */
#include "shim/context/context.h"
#include "shim/context/green_context.h"
#include "shim/context/stream_watch.h"
#include "shim/driver/async_pool.h"
#include "shim/driver/capture.h"
#include "shim/driver/device.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/entry/stream.h"
#include "shim/park/ends.h"
#include "shim/process/cancel.h"
#include "shim/process/state.h"
#include "shim/share/import.h"
#include "shim/share/peer.h"

#include <errno.h>
#include <pthread.h>

enum { ATTACHED_MAX = 256, OTHERS_MAX = 48 };

/* What one call of the program may end. */
struct ending {
    struct context_end records;
    /* Contexts without a record that the library keeps something else for, and their lives. */
    CUcontext others[OTHERS_MAX];
    unsigned long long lives[OTHERS_MAX];
    size_t num_others;
};

/* Created contexts that the program attached more often than it detached them, with the difference
 * in `uses`. `lock` protects the rows and is held over no driver call. A thread counts its
 * attachment and its detachment before it calls the driver. So the thread that finds no other use
 * detaches the last one, unless another thread is at it that has counted and comes to the driver
 * later. If the driver refuses, the thread takes its count back. */
static struct attached {
    CUcontext ctx;
    unsigned uses;
} attached[ATTACHED_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The context's row; for NULL, a free row. Lock held. */
static struct attached *find_attached(CUcontext ctx)
{
    for (struct attached *a = attached; a < attached + ATTACHED_MAX; a++)
        if (a->ctx == ctx)
            return a;
    return NULL;
}

static void count_attachment(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find_attached(ctx);
    if (!a && (a = find_attached(NULL)))
        a->ctx = ctx;
    if (a)
        a->uses++;
    pthread_mutex_unlock(&lock);
}

/* False: only the first use is left, which its creator has. */
static bool detach(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find_attached(ctx);
    if (a && --a->uses == 0)
        a->ctx = NULL;
    pthread_mutex_unlock(&lock);
    return a;
}

static void forget_attached(CUcontext ctx)
{
    pthread_mutex_lock(&lock);
    struct attached *a = find_attached(ctx);
    if (a)
        *a = (struct attached){0};
    pthread_mutex_unlock(&lock);
}

static void destroy_begins(struct ending *e, CUcontext ctx)
{
    e->num_others = 0;
    ends_begin();
    context_destroy_begins(&e->records, ctx);
    if (!library_is_off())
        import_hide(ctx, true);
}

/* The program may have captured or imported in a primary context that has no record. */
static void release_begins(struct ending *e, CUdevice device, bool reset)
{
    CUcontext all[OTHERS_MAX];
    size_t num_all = 0;
    e->num_others = 0;
    ends_begin();
    context_release_begins(&e->records, device, reset);
    if (library_is_off())
        return;
    if (capture_open())
        num_all = capture_contexts(all, OTHERS_MAX);
    if (import_any_open() || import_any_closed())
        num_all += import_contexts(all + num_all, OTHERS_MAX - num_all);
    CUcontext primary = device_primary(device);
    for (size_t i = 0; i < num_all; i++)
        if (!primary || all[i] == primary) {
            e->others[e->num_others] = all[i];
            e->lives[e->num_others++] = context_life(all[i]);
            if (reset && primary)
                import_hide(primary, true);
        }
}

/* What the library keeps for a context besides its record. */
static void forget_rest(CUcontext ctx)
{
    entry_captures_closed(capture_forget(ctx));
    peer_forget(ctx);
    import_forget(ctx);
    green_context_forget_primary(ctx);
}

/* The context did not end: allocations find it again, unless other threads may be ending it. While
 * it was hidden, the program may have submitted work that its pool does not know of. Another pool
 * may have been made that does not know of this one. Access of peers may have changed. */
static void reopen(struct context *c)
{
    if (context_unhide(c)) {
        if (!context_is_alone(c))
            single_stream_disable();
        if (c->pool)
            pool_leave_single_stream(c->pool);
        peer_renew(c);
    }
    context_show(c);
}

/* After the driver's answer (done: the call succeeded). Forgets all of what ended, and lets
 * allocations find the rest again. Keeps errno. */
static void finish(struct ending *e, bool done)
{
    struct context_end *r = &e->records;
    int saved_errno = errno;
    if (library_is_off()) {
        context_end_over(r);
        ends_over();
        return;
    }
    context_end_returned(r);
    if (r->ctx && done)
        forget_rest(r->ctx);
    else if (r->hides)
        import_hide(r->ctx, false);
    FOR_EACH_RECORD(c) {
        if (context_end_judge(r, c, done)) {
            forget_rest(atomic_load(&c->ctx));
            context_abandon(c);
        } else if (context_end_holds(r, c)) {
            reopen(c);
        }
    }
    for (size_t i = 0; i < e->num_others; i++)
        if (done && context_is_over(e->others[i], e->lives[i], CONTEXT_MAYBE_PRIMARY, r->device))
            forget_rest(e->others[i]);
        else if (r->hides)
            import_hide(e->others[i], false);
    context_end_over(r);
    ends_over();
    errno = saved_errno;
}

/* The last life of the primary context may have ended in a way that the library did not see. Then
 * its pool must not serve this life. */
static void retained(CUdevice device, CUcontext primary)
{
    struct ending e = {.records = {.device = device}};
    device_set_primary(device, primary);
    if (library_is_off())
        return;
    context_set_primary(device, primary);
    ends_begin();
    finish(&e, true);
}

static CUresult destroy_context(CUresult (*how)(CUcontext), CUcontext ctx)
{
    struct ending end;
    if (library_is_off())
        return how(ctx);
    int cancel = cancel_forbid();
    destroy_begins(&end, ctx);
    CUresult rc = how(ctx);
    if (rc == CUDA_SUCCESS && ctx)
        forget_attached(ctx);
    finish(&end, rc == CUDA_SUCCESS);
    cancel_allow(cancel);
    return rc;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy_context(real.cuCtxDestroy, ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy_context(real.cuCtxDestroy_v2, ctx);
}

/* The driver may refuse an attachment that another thread's detachment took for a use. That thread
 * did not treat its detachment as the last, so this thread looks whether the context has ended. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    struct ending end;
    CUcontext here = hooks_init() && !library_is_off() ? hooks_current() : NULL;
    if (!here)
        return real.cuCtxAttach(ctx, flags);
    int cancel = cancel_forbid();
    count_attachment(here);
    CUresult rc = real.cuCtxAttach(ctx, flags);
    if (rc != CUDA_SUCCESS && !detach(here)) {
        destroy_begins(&end, here);
        finish(&end, !context_is_alive(here));
    }
    cancel_allow(cancel);
    return rc;
}

/* The detachment of the last use ends the context. The context was current. If it still is, the
 * driver can be asked whether it is alive. Its answer overrides the count, because the count misses
 * uses that the library did not see. */
static CUresult detach_last(CUcontext ctx)
{
    struct ending end;
    destroy_begins(&end, ctx);
    CUresult rc = real.cuCtxDetach(ctx);
    bool lives = rc != CUDA_SUCCESS || (ctx && hooks_current() == ctx && context_is_alive(ctx));
    finish(&end, !lives);
    return rc;
}

/* A detachment that has counted as one of several may have been the driver's last one. Then the
 * context has ended without a beginning, and its memory goes back now. Until then nothing keeps
 * another thread's free of a segment away from that end (Note [Frees of segments] in
 * shim/driver/device.h). It takes threads that give up the last uses at once. The context may have
 * ended: about that the driver does answer (see `created`). */
static void look_for_end(CUcontext ctx)
{
    struct ending end;
    if (context_is_alive(ctx))
        return;
    destroy_begins(&end, ctx);
    finish(&end, !context_is_alive(ctx)); /* the handle may be a new context's by now */
}

CUresult cuCtxDetach(CUcontext ctx)
{
    if (library_is_off())
        return real.cuCtxDetach(ctx);
    int cancel = cancel_forbid();
    bool counted = ctx && detach(ctx);
    CUresult rc = counted ? real.cuCtxDetach(ctx) : detach_last(ctx);
    if (counted && rc != CUDA_SUCCESS)
        count_attachment(ctx);
    else if (counted)
        look_for_end(ctx);
    cancel_allow(cancel);
    return rc;
}

/* On a device full of the pools' idle memory the driver answered 999 to who makes a context, in
 * place of "out of memory" (580.159, H200). The code has other causes as well. So other processes
 * are not asked (last_try): they would give all that is idle, in vain. */
static bool may_be_full(CUresult rc, CUdevice dev, struct retry_steps *steps)
{
    return rc == CUDA_ERROR_UNKNOWN && state_is_on() && retry_release(device_bit(dev), steps);
}

#define MAKE_CONTEXT(rc, dev, call)                                                                \
    for (struct retry_steps steps = {.attempt.last_try = true};                                    \
         (rc) = (call), may_be_full(rc, dev, &steps); retry_note_again(rc, &steps))                \
    continue

/* It may use memory of all pools of its device without one of its own. Contexts may have ended past
 * the wrappers, of any device, and it may have the handle of one of them. Their pools must not
 * serve it. With a second context, pools make events: in a context that has ended the driver reads
 * what it has freed then (signal 11, 580.159). It does answer cuCtxGetApiVersion and cuCtxGetId. */
static CUresult created(CUresult rc, CUcontext *ctx)
{
    struct ending unseen = {.records = {.device = -1, .created = true}};
    if (rc != CUDA_SUCCESS || library_is_off())
        return rc;
    int cancel = cancel_forbid();
    ends_begin();
    finish(&unseen, true);
    cancel_allow(cancel);
    peer_note_context(*ctx);
    return rc;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuCtxCreate(ctx, flags, dev));
    return created(rc, ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuCtxCreate_v2(ctx, flags, dev));
    return created(rc, ctx);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int count, unsigned flags,
                        CUdevice dev)
{
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuCtxCreate_v3(ctx, affinity, count, flags, dev));
    return created(rc, ctx);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *create, unsigned flags, CUdevice dev)
{
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuCtxCreate_v4(ctx, create, flags, dev));
    return created(rc, ctx);
}

/* A primary context that comes to life again has the same handle. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    int cancel = cancel_forbid();
    bool counted = !library_is_off() && context_life_begins(dev);
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuDevicePrimaryCtxRetain(ctx, dev));
    if (counted)
        context_life_begun(dev);
    if (rc == CUDA_SUCCESS)
        retained(dev, *ctx);
    cancel_allow(cancel);
    return rc;
}

/* A reset ends the primary context at once. A release ends it if no other user is left. */
static CUresult end_primary(CUresult (*how)(CUdevice), CUdevice dev, bool reset)
{
    struct ending end;
    if (library_is_off())
        return how(dev);
    int cancel = cancel_forbid();
    async_pool_context_begins(dev);
    release_begins(&end, dev, reset);
    CUresult rc = how(dev);
    async_pool_context_over(dev);
    finish(&end, rc == CUDA_SUCCESS);
    cancel_allow(cancel);
    return rc;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxReset, dev, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxReset_v2, dev, true);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxRelease, dev, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return end_primary(real.cuDevicePrimaryCtxRelease_v2, dev, false);
}

/* A green context is a user of its device's primary context. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct ending end;
    CUcontext ctx = NULL;
    if (library_is_off())
        return real.cuGreenCtxDestroy(green);
    int cancel = cancel_forbid();
    if (green && state_is_on() && hooks_present(HOOK_cuCtxFromGreenCtx))
        real.cuCtxFromGreenCtx(&ctx, green);
    async_pool_context_begins(-1);
    release_begins(&end, -1, false);
    CUresult rc = real.cuGreenCtxDestroy(green);
    async_pool_context_over(-1);
    if (rc == CUDA_SUCCESS && ctx) {
        green_context_forget(ctx);
        entry_captures_closed(capture_forget(ctx));
    }
    finish(&end, rc == CUDA_SUCCESS);
    cancel_allow(cancel);
    return rc;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags)
{
    green_context_expect();
    int cancel = cancel_forbid();
    bool counted = !library_is_off() && context_life_begins(dev);
    CUresult rc;
    MAKE_CONTEXT(rc, dev, retry_cuGreenCtxCreate(green, desc, dev, flags));
    if (counted)
        context_life_begun(dev);
    cancel_allow(cancel);
    return rc;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
    CUresult rc = real.cuCtxFromGreenCtx(ctx, green);
    if (rc == CUDA_SUCCESS)
        single_stream_disable();
    return rc;
}
