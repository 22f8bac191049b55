/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See environ.h.
 */
#include "shim/process/environ.h"

#include "pool/spin.h"

#include <stdatomic.h>
#include <stdbool.h>

#define PATIENCE (SPIN_YIELDS + 100) /* in turns of spin_pause: some 10 ms */

static atomic_int writers;
static atomic_bool reading;

void environ_hold(void)
{
    atomic_store(&reading, true);
    for (unsigned turn = 0; atomic_load(&writers) > 0 && turn < PATIENCE; turn++)
        spin_pause(turn);
}

void environ_release(void)
{
    atomic_store(&reading, false);
}

void environ_write_begin(void)
{
    for (unsigned turn = 0;; turn++) {
        atomic_fetch_add(&writers, 1);
        if (!atomic_load(&reading) || turn == PATIENCE)
            return;
        atomic_fetch_sub(&writers, 1);
        spin_pause(turn);
    }
}

void environ_write_end(void)
{
    atomic_fetch_sub(&writers, 1);
}
