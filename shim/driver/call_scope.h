/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A call scope is a stretch of the library's own driver calls.
 * 1. It is in the relaxed capture mode, in which the driver forbids least, so that our calls break
 *    no capture of the program's. The change of mode takes 7 ns (H200).
 * 2. The thread is not cancelled in it.
 * 3. After it the caller's context, mode and errno are as before.
 * 4. At exit the driver takes itself down while other threads may still be in its calls. A program
 *    without threads has no such call, but ours may have: the control thread gives memory back. So
 *    once the process leaves no call scope begins, and the exit waits for those under way.
 * 5. A call scope ends soon, because it makes few calls. One call can be long: an unmap of 1 GiB
 *    took up to 450 ms beside eight others (H100). So the exit waits up to 10 s.
 * 6. Between call_scope_wait_begin and call_scope_wait_end a call scope waits for GPU work or for
 *    the program, perhaps for ever. Without the library a process ends beside a thread that waits.
 *    So the exit waits at most 100 ms for such a call scope. The same holds if a signal handler
 *    calls exit() inside a call scope of its own thread.
 * 7. While the driver must not be called (closed.h) no call scope is under way. A thread of the
 *    program's waits where its call scope begins, and is not counted meanwhile. A thread of the
 *    library's own is refused, as at exit.
 * No lock.
 */
#ifndef SHIM_CALL_SCOPE_H
#define SHIM_CALL_SCOPE_H

#include "shim/driver/hooks.h"
#include "shim/driver/pushed.h"
#include "shim/process/cancel.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

struct call_scope {
    struct pushed pushed;
    bool mode_known;
    CUstreamCaptureMode mode;
    int saved_errno, cancel;
};

/* Why no call scope begins: the process leaves; step 7. */
enum { CALL_SCOPE_LEAVES = 1, CALL_SCOPE_CLOSED = 2 };
extern atomic_uint call_scope_barred __attribute__((visibility("hidden")));
/* Step 7: waits until the driver may be called. An error: it may not. */
extern CUresult (*call_scope_await_driver)(void) __attribute__((visibility("hidden")));
extern atomic_int call_scope_count __attribute__((visibility("hidden")));   /* under way */
extern atomic_int call_scope_waiting __attribute__((visibility("hidden"))); /* of them, step 6 */

/* Threads of the program that are in a call of the driver's that waits for GPU work. A thread that
 * leaves such a call by no return counts for ever. */
extern atomic_int call_scope_program_waits __attribute__((visibility("hidden")));

/* The call scopes that the calling thread is in. Raised before the count, and lowered after it. So
 * a signal handler that finds the count raised by its own thread finds the depth raised too. */
extern __thread int call_scope_depth
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* A thread of the program waits for the calling thread's driver calls: they are made although the
 * process leaves, as the program's own would be (shim/park/park.h). */
extern __thread bool call_scope_is_awaited
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* While they are barred. False: the call scope does not begin. */
bool call_scope_is_admitted(void);

/* In whatever context is current. False: the process leaves, or step 7, so the driver must not be
 * called, and there is nothing to end. */
static inline bool call_scope_begin(struct call_scope *scope)
{
    call_scope_depth++;
    atomic_fetch_add(&call_scope_count, 1);
    if (atomic_load(&call_scope_barred) && !call_scope_is_admitted()) {
        atomic_fetch_sub(&call_scope_count, 1);
        call_scope_depth--;
        return false;
    }
    *scope = (struct call_scope){
        .mode = CU_STREAM_CAPTURE_MODE_RELAXED, .saved_errno = errno, .cancel = cancel_forbid()};
    scope->mode_known = real.cuThreadExchangeStreamCaptureMode &&
                        real.cuThreadExchangeStreamCaptureMode(&scope->mode) == CUDA_SUCCESS;
    return true;
}

static inline void call_scope_end(struct call_scope *scope)
{
    pushed_end(&scope->pushed);
    if (scope->mode_known)
        real.cuThreadExchangeStreamCaptureMode(&scope->mode);
    errno = scope->saved_errno;
    atomic_fetch_sub(&call_scope_count, 1);
    call_scope_depth--;
    cancel_allow(scope->cancel);
}

/* Around what waits inside a call scope: step 6. */
static inline void call_scope_wait_begin(void)
{
    atomic_fetch_add(&call_scope_waiting, 1);
}

static inline void call_scope_wait_end(void)
{
    atomic_fetch_sub(&call_scope_waiting, 1);
}

/* Ends the call scope; returns false. A function of its own, so that call_scope_enter is short. */
bool call_scope_refused(struct call_scope *scope);

/* The same in ctx, which is pushed if it is not current. False also if ctx was destroyed, because
 * the call would be made in the program's own context. Its answer would be taken for ctx's. */
static inline bool call_scope_enter(struct call_scope *scope, CUcontext ctx)
{
    return call_scope_begin(scope) &&
           (pushed_begin(&scope->pushed, ctx) || call_scope_refused(scope));
}

/* Runs work(arg) in a call scope of ctx; NULL: of whatever context is current. False: nothing was
 * run, because the process leaves or ctx is destroyed. */
bool call_scope_run(CUcontext ctx, void (*work)(void *arg), void *arg);

/* The process leaves: no call scope begins any more. Waits for call scopes under way, at most 10 s.
 * If all of them wait, or the caller is in one, it waits at most 100 ms. At exit, before the
 * driver's own handlers. */
void call_scope_at_exit(void);

#endif
