/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Lending (GPUCACHE_SHARE): if the driver has no memory and the process has no idle memory either,
 * other processes of the user give theirs back. A GPU is known by its UUID, whatever number
 * CUDA_VISIBLE_DEVICES gives it. How a neighbour is found and asked is in neighbour.h, with the
 * argument why no process waits for ever.
 *
 * A request asks only after it has tried everything in its own process (pool/alloc.c). It never
 * asks where a limit of the process's own (MAX_RESERVED) is the reason. It asks one neighbour after
 * the other for what is missing, the one with most idle memory first, and tries again after each
 * reply. All that takes at most GPUCACHE_SHARE. The time in which a neighbour parks for it does not
 * count, up to PAGE_PARK_MS: a park takes some 50 ms for each GiB, and may go to a disk. Within a
 * second of the last reply that gave memory, a process asks for at least as much as that run of
 * questions brought. For this reason it asks for at most a sixteenth of the GPU. Otherwise a
 * program that takes 48 GiB in pieces of 64 MiB would ask for each piece.
 *
 * A neighbour that gave memory and took some again within a second comes last for ten seconds. For
 * MIN_FREE, where no program waits, it is not asked at all. Otherwise two processes that need more
 * than there is would take memory from each other while a third one has some idle.
 *
 * The giving side runs on the control thread. No lock.
 */
#ifndef SHIM_LEND_H
#define SHIM_LEND_H

#include "pool/backend.h"
#include "shim/control/gpu_wait.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stdint.h>

/* The library has started: requests of the pools ask too. */
void lend_start(void);
/* Does the process ask and give? */
bool lend_is_on(void);

/* A call found no memory on one of these devices (a bit for each), and no pool of the process has
 * any to give back. bytes: what the call takes; 0: not known. *attempt is all zero at first. True:
 * a neighbour gave some back, so the call is to be made again. False: no more comes. Keeps errno.
 */
bool lend_ask(uint64_t devices, uint64_t bytes, struct lend_attempt *attempt);

/* What other processes hold of the device: see neighbour_use_list. Nothing where the process takes
 * no part in pages. */
struct neighbour_held;
size_t lend_list(const struct device_uuid *uuid, struct neighbour_held *out, size_t most,
                 uint64_t *all_bytes);

/* The process is about to be locked for a checkpoint: asks it to give back all that is idle, and
 * waits at most that long. Any thread, no lock. Keeps errno. */
void lend_flush(int pid, uint64_t wait_ns);

/* What other processes want of the device's memory, and what they have (neighbour.h). Any thread.
 * Zeroes: not known. */
struct neighbour_needs;
void lend_look(CUdevice device, uint64_t since_ns, struct neighbour_needs *out);

/* A neighbour needs bytes on the GPU of this name (device.h). Gives back at least so many idle
 * bytes, as far as there are any, in whole pieces and no piece more. Waits for the first part of
 * the wait *t, or not at all while a capture is open. If *t is not over (gpu_wait.h), more may come
 * by lend_give_rest. *found: a pool of the process is on that GPU. last: *t is over. If the
 * frameworks have not answered, a whole flush follows their answer. Both return the bytes. On the
 * control thread. */
uint64_t lend_give(const char *uuid, uint64_t bytes, uint64_t wait_ns, struct gpu_wait *t,
                   bool *found);
/* So many bytes went back for a neighbour in another way. On the control thread. */
void lend_given(uint64_t bytes);
uint64_t lend_give_rest(const char *uuid, uint64_t bytes, const struct gpu_wait *t, bool last);

#endif
