/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A visit: a stretch of the library's own driver calls.
 * 1. It is in the relaxed capture mode, in which the driver forbids least, so that our calls break
 *    no capture of the program's. The change of mode takes 7 ns (H200).
 * 2. The thread is not cancelled in it.
 * 3. After it the caller's context, mode and errno are as before.
 * 4. At exit the driver takes itself down while other threads may still be in its calls. A program
 *    without threads has no such call, but ours may have: the control thread gives memory back.
 *    So once the process leaves no visit begins, and the exit waits for those under way.
 * 5. A visit ends soon, because it makes few calls. One call can be long: an unmap of 1 GiB took
 *    up to 450 ms beside eight others (H100). So the exit waits up to 10 s.
 * 6. Between driver_call_wait_begins and driver_call_wait_ends a visit waits for GPU work or for
 *    the program, perhaps for ever. Without the library a process ends beside a thread that waits.
 *    So the exit waits at most 100 ms for such a visit. The same holds if a signal handler calls
 *    exit() inside a visit of its own thread.
 * No lock.
 */
#ifndef SHIM_DRIVER_CALL_H
#define SHIM_DRIVER_CALL_H

#include "shim/driver/hooks.h"
#include "shim/driver/pushed.h"
#include "shim/process/cancel.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

struct driver_call {
    struct pushed pushed;
    bool mode_known;
    CUstreamCaptureMode mode;
    int saved_errno, cancel;
};

extern atomic_bool driver_call_no_more
    __attribute__((visibility("hidden")));                                 /* the process leaves */
extern atomic_int driver_call_count __attribute__((visibility("hidden"))); /* under way */
extern atomic_int driver_call_waiting __attribute__((visibility("hidden"))); /* of them, step 6 */

/* Threads of the program that are in a call of the driver's that waits for GPU work. A thread that
 * leaves such a call by no return counts for ever. */
extern atomic_int driver_call_program_waits __attribute__((visibility("hidden")));

/* The visits that the calling thread is in. Raised before the count, and lowered after it. So a
 * signal handler that finds the count raised by its own thread finds the depth raised too. */
extern __thread int driver_call_depth
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* In whatever context is current. False: the process leaves, so the driver must not be called, and
 * there is nothing to end. */
static inline bool driver_call_begin(struct driver_call *v)
{
    driver_call_depth++;
    atomic_fetch_add(&driver_call_count, 1);
    if (atomic_load(&driver_call_no_more)) {
        atomic_fetch_sub(&driver_call_count, 1);
        driver_call_depth--;
        return false;
    }
    *v = (struct driver_call){
        .mode = CU_STREAM_CAPTURE_MODE_RELAXED, .saved_errno = errno, .cancel = cancel_forbid()};
    v->mode_known = real.cuThreadExchangeStreamCaptureMode &&
                    real.cuThreadExchangeStreamCaptureMode(&v->mode) == CUDA_SUCCESS;
    return true;
}

static inline void driver_call_end(struct driver_call *v)
{
    pushed_end(&v->pushed);
    if (v->mode_known)
        real.cuThreadExchangeStreamCaptureMode(&v->mode);
    errno = v->saved_errno;
    atomic_fetch_sub(&driver_call_count, 1);
    driver_call_depth--;
    cancel_allow(v->cancel);
}

/* Around what waits inside a visit: step 6. */
static inline void driver_call_wait_begins(void)
{
    atomic_fetch_add(&driver_call_waiting, 1);
}

static inline void driver_call_wait_ends(void)
{
    atomic_fetch_sub(&driver_call_waiting, 1);
}

/* Ends the visit; returns false. A function of its own, so that driver_call_enter is short. */
bool driver_call_refused(struct driver_call *v);

/* The same in ctx, which is pushed if it is not current. False also if ctx was destroyed, because
 * the call would be made in the program's own context. Its answer would be taken for ctx's. */
static inline bool driver_call_enter(struct driver_call *v, CUcontext ctx)
{
    return driver_call_begin(v) && (pushed_begin(&v->pushed, ctx) || driver_call_refused(v));
}

/* Runs work(arg) in a visit of ctx; NULL: of whatever context is current. False: nothing was run,
 * because the process leaves or ctx is destroyed. */
bool driver_call_run(CUcontext ctx, void (*work)(void *arg), void *arg);

/* The process leaves: no visit begins any more. Waits for visits under way, at most 10 s. If all of
 * them wait, or the caller is in one, it waits at most 100 ms. At exit, before the driver's own
 * handlers. */
void driver_call_at_exit(void);

#endif
