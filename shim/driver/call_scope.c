/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See call_scope.h.
 */
#include "shim/driver/call_scope.h"

#include "pool/spin.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

/* How long the exit waits for call scopes that end soon, and for those that may never end. */
#define PATIENCE_NS (10 * SEC_NS)
#define PATIENCE_ENDLESS_NS (100 * MS_NS)

atomic_uint call_scope_barred;
CUresult (*call_scope_await_driver)(void);
atomic_int call_scope_count;
atomic_int call_scope_program_waits;
atomic_int call_scope_waiting;
__thread bool call_scope_is_awaited __attribute__((tls_model("initial-exec")));
__thread int call_scope_depth __attribute__((tls_model("initial-exec")));

/* Who waits here counts as nobody. One inside another goes on: the outer one is awaited. */
SHIM_COLD bool call_scope_is_admitted(void)
{
    for (;;) {
        unsigned barred = atomic_load(&call_scope_barred);

        if ((barred & CALL_SCOPE_LEAVES) && !call_scope_is_awaited)
            return false;
        if (!(barred & CALL_SCOPE_CLOSED) || call_scope_depth > 1)
            return true;
        atomic_fetch_sub(&call_scope_count, 1);
        call_scope_depth--;
        CUresult rc = call_scope_await_driver();
        call_scope_depth++;
        atomic_fetch_add(&call_scope_count, 1);
        if (rc != CUDA_SUCCESS)
            return false;
    }
}

SHIM_COLD bool call_scope_refused(struct call_scope *scope)
{
    call_scope_end(scope);
    return false;
}

bool call_scope_run(CUcontext ctx, void (*work)(void *arg), void *arg)
{
    struct call_scope scope;
    if (ctx ? !call_scope_enter(&scope, ctx) : !call_scope_begin(&scope))
        return false;
    work(arg);
    call_scope_end(&scope);
    return true;
}

void call_scope_at_exit(void)
{
    if (!state_is_on())
        return; /* a forked child: the threads that were in the driver are not here */
    uint64_t start_ns = clock_now_ns();
    int left;
    atomic_fetch_or(&call_scope_barred, CALL_SCOPE_LEAVES);
    for (unsigned turn = 0; (left = atomic_load(&call_scope_count)) > 0; turn++) {
        bool endless = call_scope_depth || left <= atomic_load(&call_scope_waiting);
        uint64_t waited_ns = clock_now_ns() - start_ns;
        if (waited_ns >= (endless ? PATIENCE_ENDLESS_NS : PATIENCE_NS))
            break;
        spin_pause(turn);
    }
}
