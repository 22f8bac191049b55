/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the frameworks' part of a flush (shim/framework/framework.h) needs of CUDA, and the flush
 * that follows when a framework answers late.
 */
#ifndef SHIM_FRAMEWORKS_H
#define SHIM_FRAMEWORKS_H

#include "shim/framework/framework.h"

#include <stdbool.h>
#include <stdint.h>

/* Asks the packages with caches of their own, and waits at most that long. On the control thread,
 * with no lock held. Fills NUM_FRAMEWORKS results, unless `results` is NULL. False: an answer is to
 * come. Then follow(true) is called once on the control thread, while no capture is open: what came
 * back is idle in the pools. follow(false) is called where nothing is to follow. At most four
 * different functions wait at a time. */
bool frameworks_ask(uint64_t wait_ns, void (*follow)(bool gave), struct framework_result *results);

/* Asks them soon, then calls `follow`; gave: one emptied its cache. Any thread, under any lock:
 * waits for nothing. */
void frameworks_ask_later(void (*follow)(bool gave));

#endif
