/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A wake: waits until the device has room for all that is away, and brings it back. On the park
 * thread, behind the gate. Takes no lock but that of neighbour.h, for a look at pages and for
 * questions to other processes.
 *
 * 1. It brings back all or nothing (move_back), so two processes never both hold half of what they
 *    need.
 * 2. The page says what the process waits for, and since when. It tries only if the free memory of
 *    the device covers what all older waiters need, too. So the oldest goes first. The numbers of
 *    other pages are hints: a false one costs at most the time of GPUCACHE_PARK_WAIT.
 * 3. Between two tries its own idle memory goes back, and neighbours are asked (lend_ask). It
 *    sleeps WAKE_PAUSE_LEAST_NS to WAKE_PAUSE_MOST_NS, longer each time, with jitter. Where NVML
 *    does not tell what is free (room.h), it only sleeps and looks again: nothing may be missing.
 * 4. Where the bytes are in a file and the file cannot be read, it ends at once. Nothing is
 *    dropped, and the next use tries again.
 * 5. While the process is off the GPU as a whole, a try without room is its last (whole.h). So its
 *    needs are told before it looks, and it looks again after WAKE_SECOND_LOOK_NS: of several that
 *    wake at once all but the oldest have seen the needs of the others by then.
 */
#ifndef SHIM_WAKE_H
#define SHIM_WAKE_H

#include "shim/park/park.h"

#include <stdbool.h>
#include <stdint.h>

#define WAKE_PAUSE_LEAST_NS (50 * MS_NS)
#define WAKE_PAUSE_MOST_NS (250 * MS_NS)
#define WAKE_SECOND_LOOK_NS (100 * MS_NS)
#define WAKE_TELL_NS (10 * SEC_NS) /* of waiting, before the log has a warning */

/* How a wake tries once. 0, or the driver's code. */
typedef int wake_try(void);

/* Tries until until_ns. with_arenas: or only what whole.h took. goes_on: asked before each try. 0:
 * all is back. *waited_ns: of that time, without enough memory. */
int wake_run(bool with_arenas, wake_try *try_once, bool (*goes_on)(void), uint64_t until_ns,
             uint64_t *waited_ns);
/* Why the last one failed, or the one under way waits: a sentence. code: what wake_run gave. */
void wake_say_why(int code, char why[PARK_WHY_BYTES]);

#endif
