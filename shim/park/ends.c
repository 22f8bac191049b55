/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ends.h.
 */
#include "shim/park/ends.h"

#include "pool/spin.h"
#include "shim/driver/closed.h"
#include "shim/park/quiet.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

#include <stdatomic.h>

static atomic_bool leaves; /* the process */
static atomic_bool held_off;

bool ends_hold_off(void)
{
    atomic_store(&held_off, true);
    if (!quiet_has_enders())
        return true;
    atomic_store(&held_off, false);
    return false;
}

void ends_hold_off_after(uint64_t wait_ns)
{
    uint64_t end_ns = clock_now_ns() + wait_ns;

    for (unsigned turn = 0; !ends_hold_off(); turn++) {
        spin_pause(turn);
        if (clock_now_ns() < end_ns)
            continue;
        atomic_store(&held_off, true);
        break;
    }
}

void ends_allow(void)
{
    atomic_store(&held_off, false);
}

/* The driver is to be open before: the wake would wait for this thread. */
void ends_begin(void)
{
    for (;;) {
        CUresult rc = closed_await();

        quiet_ender_begins();
        for (unsigned turn = 0; rc == CUDA_SUCCESS && atomic_load(&held_off) && state_is_on();
             turn++)
            spin_pause(turn);
        if (rc != CUDA_SUCCESS || !closed_is_now())
            return;
        quiet_ender_ends();
    }
}

void ends_over(void)
{
    quiet_ender_ends();
}

void ends_at_exit(uint64_t end_ns)
{
    atomic_store(&leaves, true);
    for (unsigned turn = 0; atomic_load(&held_off) && clock_now_ns() < end_ns; turn++)
        spin_pause(turn);
}

bool ends_are_none(void)
{
    return !quiet_has_enders() && !atomic_load(&leaves);
}

bool ends_process_leaves(void)
{
    return atomic_load(&leaves);
}

const char *ends_why(void)
{
    return ends_process_leaves() ? "the process leaves" : "a context is ending";
}
