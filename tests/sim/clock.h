/* SPDX-License-Identifier: BSD-2-Clause */
/* The virtual clock of the host, and the order in which submitted work completes on it. Driver
 * lock. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include "tests/sim/driver.h"

struct work;

uint64_t clock_now_ns(void);
/* The host has spent time. */
void clock_charge(uint64_t ns);
/* Completes all work that ends by now. */
void clock_run(void);
/* A query of something unfinished: a little time passes (SIM_POLL_NS), then clock_run. */
void clock_poll(void);

/* All predecessors of the work are complete. The work runs for its duration, from now or from their
 * end. */
void clock_start(struct work *work);

/* Completes the work that ends next and moves the clock there. Returns false if no work has an
 * end. */
bool clock_step(void);

/* Blocks the host until the work is done. Gives the lock up while real time has to pass. After
 * SIM_HANG_S seconds without progress it reports a deadlock and returns
 * CUDA_ERROR_LAUNCH_TIMEOUT. */
CUresult clock_wait(struct work *work);

/* With SIM_REALTIME: the virtual time that this thread has spent and not slept yet. */
uint64_t clock_take_debt(void);
/* Lets that much real time pass. The caller does not hold the lock. */
void clock_pay(uint64_t ns);

#endif
