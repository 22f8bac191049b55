/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See state.h. One thread settles the word, and all others read it. No lock.
 */
#include "shim/process/state.h"

#include "shim/process/clock.h"

_Atomic int state_now;
_Atomic uint32_t state_detours_now;

static uint64_t started_ns;

bool state_claim(void)
{
    int expected = STATE_NEW;
    return atomic_compare_exchange_strong(&state_now, &expected, STATE_STARTING);
}

void state_settle(bool on)
{
    started_ns = on ? clock_now_ns() : 0;
    atomic_store(&state_now, on ? STATE_ON : STATE_OFF);
}

void state_turn_off(void)
{
    atomic_store(&state_now, STATE_OFF);
}

uint64_t state_started_ns(void)
{
    return started_ns;
}
