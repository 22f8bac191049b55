/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See capture.h. The table of capturing streams has a lock of its own, never held over a driver
 * call. The counts are sequentially consistent.
 */
#include "shim/driver/capture.h"

#include "pool/bits.h"
#include "pool/host_memory.h"
#include "pool/spin.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CAPTURES_FIRST = 256 };

/* A stream is known by its handle until it is destroyed: then another stream may get the handle.
 * The per-thread default stream is known by its context and thread too. */
struct capture {
    CUcontext ctx;   /* the stream's, which may be a green one and need not be current */
    CUcontext owner; /* for a green context: its primary one; else ctx */
    CUstream stream;
    pthread_t thread;
    uint64_t number; /* 0: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture first_captures[CAPTURES_FIRST], *captures = first_captures;
static size_t captures_size = CAPTURES_FIRST;
static uint64_t last_number;
static atomic_int open_count, holders;
static atomic_int waiters; /* holders that wait for GPU work */

/* After so long a call that waits has begun, unless its thread did not run. */
#define BEGIN_NS (20 * MS_NS)

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
    clock_sleep(ns);
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
    uint64_t start_ns = clock_now_ns(), wait_ns = 10000;
    while (capture_open()) {
        if (own_is_open() || clock_now_ns() - start_ns >= timeout_ns)
            return false;
        pause_ns(wait_ns);
        wait_ns = min_u64(wait_ns * 2, MS_NS);
    }
    return true;
}

/* A capture may begin between the wait and the look, hence the loop. */
bool capture_hold_off_patiently(uint64_t timeout_ns)
{
    uint64_t start_ns = clock_now_ns();
    while (!capture_hold_off()) {
        uint64_t waited_ns = clock_now_ns() - start_ns;
        if (waited_ns >= timeout_ns || !capture_await(timeout_ns - waited_ns))
            return false;
    }
    return true;
}

/* 1. Once it is counted as open, threads see the capture and do not hold it off.
 * 2. A holder that does not wait is done at once. The capture waits for it.
 * 3. When all holders wait, the capture waits for BEGIN_NS more: by then their calls have begun.
 * 4. A waiter is a holder before it becomes a waiter, and after it ceases to be one. So holders > 0
 *    misses no waiter.
 * 5. The two counts are not read at one time, so one look may take a holder for a waiter. It only
 *    starts the clock of 3, and the next look sees the holder. */
void capture_begins(void)
{
    uint64_t start_ns = 0;
    atomic_fetch_add(&open_count, 1);
    for (unsigned turn = 0; atomic_load(&holders) > 0; turn++) {
        if (atomic_load(&holders) > atomic_load(&waiters))
            start_ns = 0;
        else if (!start_ns)
            start_ns = clock_now_ns();
        else if (clock_now_ns() - start_ns >= BEGIN_NS)
            return;
        spin_pause(turn);
    }
}

void capture_failed(void)
{
    atomic_fetch_sub(&open_count, 1);
}

/* Lock held. */
static struct capture *find_capture(CUcontext ctx, CUstream stream)
{
    for (struct capture *c = captures; c < captures + captures_size; c++)
        if (c->number && c->stream == stream &&
            (stream != CU_STREAM_PER_THREAD ||
             (c->ctx == ctx && pthread_equal(c->thread, pthread_self()))))
            return c;
    return NULL;
}

uint64_t capture_number(CUstream stream)
{
    if (!capture_open())
        return 0;
    CUcontext ctx = hooks_current();
    pthread_mutex_lock(&lock);
    const struct capture *c = find_capture(ctx, stream);
    uint64_t number = c ? c->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

size_t capture_ended(uint64_t number)
{
    bool over = false;
    if (!number)
        return 0;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c < captures + captures_size && !over; c++)
        if (c->number == number) {
            c->number = 0;
            over = true;
        }
    pthread_mutex_unlock(&lock);
    if (over)
        atomic_fetch_sub(&open_count, 1);
    return over;
}

size_t capture_forget(CUcontext ctx)
{
    int gone = 0;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c < captures + captures_size; c++)
        if (c->number && (c->ctx == ctx || c->owner == ctx)) {
            c->number = 0;
            gone++;
        }
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&open_count, gone);
    return (size_t)gone;
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

/* The stream's context, which need not be the current one. The driver has just taken the handle, so
 * the thread may ask the driver about it. For a default stream the driver names the current
 * context. */
static CUcontext context_of(CUstream stream, CUcontext *owner)
{
    CUcontext ctx = NULL;
    CUgreenCtx green = NULL;
    if (!real.cuStreamGetCtx || real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS || !ctx)
        ctx = hooks_current();
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

/* Without host memory for its row a capture stays counted for ever. Then no fence is recorded any
 * more, and a thread that waits for the end of captures waits until its limit. */
void capture_began(CUstream stream)
{
    CUcontext owner, ctx = context_of(stream, &owner);
    pthread_mutex_lock(&lock);
    struct capture *c = free_row();
    if (c)
        *c = (struct capture){ctx, owner, stream, pthread_self(), ++last_number};
    pthread_mutex_unlock(&lock);
}

bool capture_goes_on(CUstream stream, CUresult end)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!hooks_present(HOOK_cuStreamIsCapturing) ||
        real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS)
        return end == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}
