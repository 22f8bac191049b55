/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See closed.h; the numbers below are those of its steps.
 */
#include "shim/driver/closed.h"

#include "pool/spin.h"
#include "shim/driver/call_scope.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"

#include <stdatomic.h>

struct hooks_real closed_real;

static CUresult (*await_open)(void), (*await_open_in_scope)(void);

/* Step 5. */
static __thread uint64_t failed_ns __attribute__((tls_model("initial-exec")));
static __thread CUresult failed_code __attribute__((tls_model("initial-exec")));

bool closed_is_now(void)
{
    return atomic_load(&call_scope_barred) & CALL_SCOPE_CLOSED;
}

/* It may close again before the thread is at the driver. */
static SHIM_COLD CUresult await_by(CUresult (*await)(void))
{
    while (closed_is_now()) {
        if (!state_is_on())
            return CUDA_ERROR_NOT_INITIALIZED; /* step 4 */
        if (own_thread_is_here)
            return CUDA_ERROR_DEINITIALIZED;
        if (failed_ns && clock_now_ns() < failed_ns + CLOSED_SAME_CALL_NS)
            return failed_code;
        CUresult rc = await();
        failed_ns = rc == CUDA_SUCCESS ? 0 : clock_now_ns();
        failed_code = rc;
        if (rc != CUDA_SUCCESS)
            return rc;
    }
    return CUDA_SUCCESS;
}

SHIM_COLD CUresult closed_await(void)
{
    return await_by(await_open);
}

/* Step 6. */
static SHIM_COLD CUresult await_in_scope(void)
{
    return await_by(await_open_in_scope);
}

/* Is the question answered without the driver? A compile-time constant. */
static inline bool is_answered(enum hook_id hook)
{
    switch (hook) {
#if CUDA_VERSION >= 13000
    case HOOK_cuCtxSynchronize_v2:
#endif
    case HOOK_cuCtxSynchronize:
    case HOOK_cuStreamSynchronize:
    case HOOK_cuStreamSynchronize_ptsz:
    case HOOK_cuStreamQuery:
    case HOOK_cuStreamQuery_ptsz:
    case HOOK_cuEventSynchronize:
    case HOOK_cuEventQuery:
        return true;
    default:
        return false;
    }
}

/* What the slots have meanwhile. */
#define WHILE_CLOSED(symbol, params, args, answered)                                               \
    static CUresult closed_##symbol params                                                         \
    {                                                                                              \
        if ((answered) && closed_is_now() && state_is_on() && !own_thread_is_here)                 \
            return CUDA_SUCCESS;                                                                   \
        CUresult rc = closed_await();                                                              \
        return rc == CUDA_SUCCESS ? closed_real.symbol args : rc;                                  \
    }
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group)                                                     \
    WHILE_CLOSED(symbol, params, args, is_answered(HOOK_##symbol))
#define HOOK_CALLED(symbol, pfn, params, args) WHILE_CLOSED(symbol, params, args, false)
#include "shim/driver/hooks.def"

/* A thread that waited before may read closed_real just then: the same values. */
__attribute__((no_sanitize("thread"))) void closed_begin(CUresult (*await)(void),
                                                         CUresult (*in_scope)(void))
{
    await_open = await;
    await_open_in_scope = in_scope;
    call_scope_await_driver = await_in_scope;
#define KEEP(symbol)                                                                               \
    atomic_store_explicit(&closed_real.symbol,                                                     \
                          atomic_load_explicit(&real.symbol, memory_order_relaxed),                \
                          memory_order_relaxed);
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) KEEP(symbol)
#define HOOK_CALLED(symbol, pfn, params, args) KEEP(symbol)
#include "shim/driver/hooks.def"
    atomic_fetch_or(&call_scope_barred, CALL_SCOPE_CLOSED);
    own_visits_bar();
}

/* Functions that the driver lacks keep their slots. As in hooks.c, the thread sanitizer would
 * report each write and the plain loads of a call as a race. */
__attribute__((no_sanitize("thread"))) static void switch_slots(void)
{
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group)                                                     \
    if (hooks_present(HOOK_##symbol))                                                              \
        atomic_store(&real.symbol, closed_##symbol);
#define HOOK_CALLED(symbol, pfn, params, args)                                                     \
    if (atomic_load(&closed_real.symbol))                                                          \
        atomic_store(&real.symbol, closed_##symbol);
#include "shim/driver/hooks.def"
}

bool closed_drain(uint64_t wait_ns)
{
    uint64_t end_ns = clock_now_ns() + wait_ns;
    for (unsigned turn = 0; atomic_load(&call_scope_count) || !own_visits_are_over(); turn++) {
        if (clock_now_ns() >= end_ns)
            return false;
        spin_pause(turn);
    }
    switch_slots(); /* now: a call scope has to come to its end as it began */
    clock_sleep(CLOSED_GRACE_NS);
    return true;
}

/* The slots first: who finds the driver open calls it. */
__attribute__((no_sanitize("thread"))) void closed_end(void)
{
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group)                                                     \
    atomic_store(&real.symbol, atomic_load(&closed_real.symbol));
#define HOOK_CALLED(symbol, pfn, params, args)                                                     \
    atomic_store(&real.symbol, atomic_load(&closed_real.symbol));
#include "shim/driver/hooks.def"
    own_visits_allow();
    atomic_fetch_and(&call_scope_barred, ~(unsigned)CALL_SCOPE_CLOSED);
}
