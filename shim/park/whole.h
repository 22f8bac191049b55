/* SPDX-License-Identifier: BSD-2-Clause
 *
 * `gpucache park --whole`: what a park of the arenas leaves on the GPU goes too, by the driver's
 * own checkpoint, which the process makes of itself: contexts, code, graphs, memory of other kinds.
 * The park thread makes it behind the gate, when the arenas are away, and takes it back before they
 * come back.
 *
 * The driver (H100 and H200, 580): lock 0.4 ms, checkpoint 442 ms, restore 332 ms, unlock 1.3 ms.
 * While checkpointed most calls of the driver's block, some answer 304, and one ends the process by
 * SIGSEGV. A restore that finds too little memory fails with 2, each later one with 304, and the
 * process never uses the GPU again. 64 MiB, and 24 GiB, of a process are back 0.4 and 1.2 s after a
 * use, its bytes checked; of PyTorch after 0.7 s.
 *
 *  1. While checkpointed no thread calls the driver (closed.h). A call of a wrapped function wakes
 *     the process, as a use does, or is answered. Submissions and other uses are kept out by the
 *     gate since before.
 *  2. A program's call of a function that no table has goes to the driver all the same. It may
 *     block until the process is woken otherwise, or end the process. So hooks.def has rows for
 *     what the CUDA runtime and other libraries call first (HOOK_WOKEN). So the park as a whole is
 *     made by request alone, never by GPUCACHE_PARK=idle or lend, and its receipt says so.
 *     The program's own calls of NVML wait for a wake, too: the driver holds them up (room.c).
 *  3. Not made, with a sentence: where the driver lacks the functions, or another process has
 *     locked this one; for memory that others know, or managed memory, which the driver does not
 *     save; beside libraries of whole.def; under MPS; on parts of GPUs; where nothing tells when
 *     there is room again (room.c). What else it cannot save, such as events for other processes,
 *     the driver itself refuses.
 *  4. A restore is tried only if NVML finds room twice (step 5 of wake.h): on each device what the
 *     checkpoint took off it, what is away of the arenas, and 1 GiB. A process that left less than
 *     2 GiB of the device free wants half of that beside its own, so it can come back. The race
 *     that remains is a process without the library that takes more than that within the 0.3 s of
 *     the restore. What the checkpoint took off is what became free meanwhile, if that fits what
 *     NVML listed for the process before, and it lists nothing afterwards (H200, 580.159: 5.6 MiB
 *     less than became free, be it a context, 2 GiB by cuMemAlloc or in pools, or PyTorch). Else
 *     others took or freed memory meanwhile, and it is what was listed and LISTED_LESS_BYTES. Where
 *     NVML lists nothing, as in containers with pids of their own, or takes long for it, it is what
 *     became free: what others free counts too, and what they take is missed, of which 1 GiB does
 *     no harm. So `gpucache park` asks one process after another.
 *  5. Each fault of the way out is undone: the process is unlocked and the driver open; the arenas
 *     stay away. If the unlock fails, the driver stays closed, and the next wake or park tries
 *     again, without a look at NVML. If NVML does not tell what the checkpoint freed, a wake could
 *     not know what it needs. So the process is restored at once, into the memory that it has just
 *     left. A lock that fails with CUDA_ERROR_ILLEGAL_STATE met another process's lock, which stays
 *     as it is: that process restores and unlocks.
 *  6. A wake and a park ask the driver for the state of the process first. So they go on if another
 *     process has restored or unlocked it.
 *  7. A restore that fails is tried again as long as the driver says that the process is
 *     checkpointed. Else all calls get its error, and a warning says that the process is lost.
 *  8. At exit the process is restored, without its arenas, because the driver's own handlers come
 *     next. It waits for room as a use does. After GPUCACHE_PARK_WAIT the handlers come all the
 *     same, and the park thread tries on beside them. A process that is killed needs nothing.
 *  9. After GPUCACHE_PARK_WAIT a call gets the error that the driver has no memory, whatever it
 *     asks. Where NVML hangs that is some 5 s later, in a park that the call met and in its wake.
 *     The calls that the same call of the runtime's makes next do not wait again (closed.h).
 * 10. No call of the driver's has a bound but the lock. One that takes 20 s is late: the log has a
 *     warning, requests are answered, and an exit waits no longer. Calls that wait get an error
 *     each GPUCACHE_PARK_WAIT, but not before 20 s. The park thread stays in the call. If that
 *     returns, all goes on.
 * 11. While another process has locked this one each call of the driver's blocks until the unlock,
 *     but for the question about the state. The control thread would be in such a call, and the
 *     asker would learn nothing. So a request to park or to wake begins with that question. Other
 *     duties of that thread do call the driver: flushes, limits, what neighbours ask for. While one
 *     of them is in such a call, no request is answered before the unlock.
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
/* Step 11. NULL: no other process has locked this one; or the driver is closed, or the process
 * leaves. Else one sentence. Calls nothing that blocks then. On the control thread. */
const char *whole_lock_refusal(void);
/* In LEAVING. True: the process is off the GPU, and r->whole_bytes is what that freed. False, with
 * r->why: step 5. */
bool whole_close(struct park_receipt *r);
/* Restores and unlocks. There is room: step 4. 0, or the driver's code. */
int whole_open(void);
/* Unlocks, unless the process waits for room: steps 5 and 6. 0, and if the driver is closed, the
 * process is checkpointed; or the driver's code. */
int whole_settle(void);
/* Step 7: the code that all calls get; 0: it is not so. */
int whole_lost_code(void);
/* Step 10. NULL; or the end of the function's name. Any thread. */
const char *whole_late_step(void);
/* Step 8. On the thread that ends the process. */
void whole_at_exit(uint64_t end_ns);

/* What a wake needs, by device, after whole_settle; with the arenas, or only a restore. Beside
 * closed.h's driver room_tell says what is free. */
void whole_needs(bool with_arenas, uint64_t needs_bytes[]);

#endif
