/* SPDX-License-Identifier: BSD-2-Clause
 *
 * `gpucache park --whole`: what a park of the arenas leaves on the GPU goes too, by the driver's
 * own checkpoint, which the process makes of itself: contexts, code, graphs, memory of other kinds.
 * The park thread makes it behind the gate, when the arenas are away, and takes it back before they
 * come back.
 *
 * The driver (H100, 580): lock 0.4 ms, checkpoint 442 ms, restore 332 ms, unlock 1.3 ms. While
 * checkpointed most calls of the driver's block, and one ends the process by SIGSEGV. A restore
 * that finds too little memory fails with 2, each later one with 304, and the process never uses
 * the GPU again.
 *
 *  1. While checkpointed no thread calls the driver (closed.h). A call of a wrapped function wakes
 *     the process, as a use does, or is answered. Submissions and other uses are kept out by the
 *     gate since before.
 *  2. A program's call of a function that no table has goes to the driver all the same. It may
 *     block until the process is woken otherwise, or end the process. So hooks.def has rows for
 *     what the CUDA runtime and other libraries call first (HOOK_WOKEN). So the park as a whole is
 *     made by request alone, never by GPUCACHE_PARK=idle or lend, and its receipt says so.
 *  3. Not made, with a sentence: where the driver lacks the functions, or another process has
 *     locked this one; for memory that others know, or managed memory, which the driver does not
 *     save; beside libraries of whole.def; under MPS; on parts of GPUs; where nothing tells when
 * there is room again. What else it cannot save, such as events for other processes, the driver
 * itself refuses.
 *  4. A restore is tried only if NVML finds room twice, ROOM_PAUSE_NS apart: on each device what
 *     the checkpoint freed, what is away of the arenas, and 1 GiB. Until then the wake waits for
 *     memory, as for the arenas (wake.h). The race that remains is another process that takes more
 *     than 1 GiB within the 0.3 s of the restore.
 *  5. Each fault of the way out is undone: the process is unlocked and the driver open; the arenas
 *     stay away. If the unlock fails, the driver stays closed, and the next wake tries again.
 *  6. A wake asks the driver for the state of the process first. So it goes on if another process
 *     has restored or unlocked it.
 *  7. A restore that fails is tried again as long as the driver says that the process is
 *     checkpointed. Else all calls get its error, and a warning says that the process is lost.
 *  8. At exit the process is restored, without its arenas, because the driver's own handlers come
 *     next. Where there is no room for it within 10 s it ends as it is. A process that is killed
 *     needs nothing.
 *  9. After GPUCACHE_PARK_WAIT a call gets the error that the driver has no memory, whatever it
 *     asks. The calls that the same call of the runtime's makes next do not wait again (closed.h).
 *
 * On the park thread, but for the questions.
 */
#ifndef SHIM_WHOLE_H
#define SHIM_WHOLE_H

#include "shim/park/park.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Has the program brought in memory or an event of another process or driver? NCCL does so once a
 * communicator reaches another process. Set by shim/entry/count.c. */
extern atomic_bool whole_shares __attribute__((visibility("hidden")));

/* Step 3. NULL: it may go. Else one sentence, in `why` or static. The gate is open or PARKED. */
const char *whole_refusal(char why[PARK_WHY_BYTES]);
/* In LEAVING. goes_on: asked between two steps. True: the process is off the GPU, and
 * r->whole_bytes is what that freed. False, with r->why: step 5. */
bool whole_close(bool (*goes_on)(void), struct park_receipt *r);
/* Restores and unlocks if there is room; for the arenas, too, or not. 0, or the driver's code. */
int whole_open(bool with_arenas);
/* Step 7: the code that all calls get; 0: it is not so. */
int whole_lost_code(void);

/* Adds what a restore needs; by device. */
void whole_add_needs(uint64_t needs_bytes[]);
/* Free memory of a device while the driver is closed. */
uint64_t whole_free_bytes(int device);

#endif
