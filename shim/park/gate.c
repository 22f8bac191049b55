/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See gate.h; the numbers below are those of its steps.
 */
#include "shim/park/gate.h"

#include "pool/bits.h"
#include "pool/pool.h"
#include "shim/process/clock.h"
#include "shim/process/futex.h"
#include "shim/process/state.h"

#include <errno.h>
#include <stdatomic.h>

#define FIRST_PAUSE_NS 10000

static _Atomic uint32_t state; /* enum gate_state */
static _Atomic uint32_t turn;  /* arrivals sleep here */
static _Atomic uint32_t bell;  /* the park thread sleeps here */
/* How often a wake has failed, in the upper half, and the error of the latest one. */
static _Atomic uint64_t failure;

enum gate_state gate_state(void)
{
    return (enum gate_state)atomic_load(&state);
}

bool gate_is_closing(void)
{
    return atomic_load(&state) == GATE_CLOSING;
}

uint32_t gate_bell(void)
{
    return atomic_load(&bell);
}

void gate_ring(void)
{
    atomic_fetch_add(&bell, 1);
    futex_wake_all(&bell, FUTEX_OF_PROCESS);
}

static void sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    int saved_errno = errno;
    futex_wait(word, seen, until_ns, FUTEX_OF_PROCESS);
    errno = saved_errno;
}

void gate_await_bell(uint32_t seen, uint64_t until_ns)
{
    sleep_on(&bell, seen, until_ns);
}

static bool change_state(enum gate_state from, enum gate_state to)
{
    uint32_t expected = from;
    return atomic_compare_exchange_strong(&state, &expected, to);
}

/* Behind what the sleepers look at: step 9. */
static void raise_turn(void)
{
    atomic_fetch_add(&turn, 1);
    futex_wake_all(&turn, FUTEX_OF_PROCESS);
}

bool gate_close(void)
{
    if (!change_state(GATE_OPEN, GATE_CLOSING))
        return false;
    atomic_fetch_or(&pool_watch, POOL_WATCH_GATE);
    return true;
}

bool gate_pause(uint64_t ns)
{
    uint32_t seen = gate_bell();
    if (gate_is_closing())
        sleep_on(&bell, seen, clock_now_ns() + ns);
    return gate_is_closing();
}

bool gate_drain(uint64_t wait_ns)
{
    uint64_t end_ns = clock_now_ns() + wait_ns, pause_ns = FIRST_PAUSE_NS;
    while (gate_is_closing() && !submitters_are_missed()) { /* step 6 */
        if (submitters_are_idle())
            return true;
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= end_ns)
            break;
        gate_pause(min_u64(pause_ns, end_ns - now_ns));
        pause_ns = min_u64(2 * pause_ns, MS_NS);
    }
    return false;
}

bool gate_leave(void)
{
    return change_state(GATE_CLOSING, GATE_LEAVING) || change_state(GATE_PARKED, GATE_LEAVING);
}

void gate_is_parked(void)
{
    atomic_store(&state, GATE_PARKED);
    raise_turn();
}

/* Uses that have read `failure` before get the error: step 12. */
static void count_failure(CUresult rc)
{
    uint64_t count = (atomic_load(&failure) >> 32) + 1;
    atomic_store(&failure, count << 32 | (uint32_t)rc);
}

void gate_fail(CUresult rc)
{
    count_failure(rc);
    gate_is_parked();
}

void gate_refuse(CUresult rc)
{
    count_failure(rc);
    raise_turn();
}

void gate_open(void)
{
    atomic_store(&state, GATE_OPEN);
    atomic_fetch_and(&pool_watch, ~POOL_WATCH_GATE);
    raise_turn();
}

void gate_look_again(void)
{
    raise_turn();
}

bool gate_wake(void)
{
    bool wakes = change_state(GATE_PARKED, GATE_WAKING);
    if (wakes)
        gate_ring();
    return wakes;
}

/* Steps 8 and 9. */
static void knock(void)
{
    if (change_state(GATE_CLOSING, GATE_OPEN))
        gate_ring();
    else
        gate_wake();
}

SHIM_COLD CUresult gate_arrive_until(bool (*may_go)(void))
{
    uint64_t before = atomic_load(&failure);
    for (;;) {
        uint32_t seen = atomic_load(&turn); /* step 9 */
        if (may_go())
            return CUDA_SUCCESS;
        uint64_t latest = atomic_load(&failure);
        if (latest != before)
            return (CUresult)(uint32_t)latest;
        knock();
        sleep_on(&turn, seen, FUTEX_FOREVER);
    }
}

static bool uses_may_go(void)
{
    return !(atomic_load(&pool_watch) & POOL_WATCH_GATE);
}

SHIM_COLD CUresult gate_arrive(void)
{
    return gate_arrive_until(uses_may_go);
}

/* Step 6 of submitter.h: without a pool there is no mark. */
static bool needs_mark(struct gate_use *use)
{
    use->s = NULL;
    if (!atomic_load(&pool_watch) || !state_is_on())
        return false;
    use->s = submitter_find();
    return true;
}

CUresult gate_use_begin(struct gate_use *use)
{
    unsigned watch;
    return needs_mark(use) ? gate_enter(use->s, SUBMITTER_NO_WORK, &watch) : CUDA_SUCCESS;
}

void gate_use_end(const struct gate_use *use)
{
    if (use->s)
        submitter_unmark(use->s);
}

/* Behind the bit without a mark: what is no pool's does not go away. */
CUresult gate_ask_begin(struct gate_use *use, uint64_t addr)
{
    if (pool_owns(addr))
        return gate_use_begin(use);
    use->s = NULL;
    return CUDA_SUCCESS;
}
