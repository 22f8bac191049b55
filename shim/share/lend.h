/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Lending (GPUCACHE_SHARE): when the driver has no memory and the process has none left to give
 * back, other processes of the user give theirs back. A GPU is known by its UUID, whatever number
 * CUDA_VISIBLE_DEVICES gives it. How a neighbour is found and asked is in neighbour.h, with the
 * argument why no process waits for ever.
 *
 * A request asks only after its own ladder, and never where a limit of the process's own
 * (MAX_RESERVED) is the reason. It asks one neighbour after the other for what is missing, the one
 * with most idle memory first, and tries again after each reply. All that takes at most
 * GPUCACHE_SHARE. A program that asks again within a second asks for as much as came in the run of
 * questions before, up to a sixteenth of the GPU: a program that takes 48 GiB in pieces of 64 MiB
 * would else ask for each of them.
 *
 * A neighbour that took memory again within a second after it had given some comes last for ten
 * seconds, and is left alone where no program waits (MIN_FREE). So two processes that need more
 * than there is cannot take the memory from each other and leave it idle in turn while a third one
 * has idle memory.
 *
 * The giving side runs on the control thread. No lock.
 */
#ifndef SHIM_LEND_H
#define SHIM_LEND_H

#include "shim/control/turns.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stdint.h>

/* The library has started: requests of the pools ask too. */
void lend_start(void);
/* Does the process ask and give? */
bool lend_is_on(void);

/* A call for bytes (0: not known how many) on one of these devices (a bit for each) found no
 * memory, and no pool of the process has any to give back. *series is 0 at first. True: a neighbour
 * gave some back, so the call is to be made again. False: no more comes. Keeps errno. */
bool lend_ask(uint64_t devices, uint64_t bytes, uint64_t *series);

/* A neighbour needs bytes on the GPU of this name (device.h): gives back at least so many idle
 * ones, if there are, and no more than the pieces that they lie in. Waits for frameworks within
 * wait_ns, and for GPU work for the first part of the wait *t; not at all while a capture is open.
 * Where *t is not over (turns.h), more may come by lend_give_rest once it is. *found: a pool of the
 * process is on that GPU. Both return the bytes. On the control thread. */
uint64_t lend_give(const char *uuid, uint64_t bytes, uint64_t wait_ns, struct turns *t,
                   bool *found);
uint64_t lend_give_rest(const char *uuid, uint64_t bytes);

#endif
