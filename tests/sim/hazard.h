/* SPDX-License-Identifier: BSD-2-Clause */
/* The hazard checker: remembers who touched which bytes of device memory last, and reports two
 * accesses of which one writes and none is ordered before the other. Order is what the program
 * established: stream order, event and context waits, the legacy stream's rules, and what the host
 * has seen complete. Accesses that both fall in one ownership of the program (simOwnerBegin) are
 * its own business. Driver lock. */
#ifndef SIM_HAZARD_H
#define SIM_HAZARD_H

#include "tests/sim/stream.h"

/* The command is being submitted to the stream, whose clock says what comes before it. Gives the
 * stream's clock its next number. */
void hazard_command(CUstream stream, const struct command *command);

/* The memory is about to go (unmapped or freed): reports work that may still touch it, forgets the
 * range. */
void hazard_release(uint64_t lo, uint64_t hi, const char *call);

/* The driver itself orders whatever comes next in this range: forget what is known. */
void hazard_forget(uint64_t lo, uint64_t hi);

uint64_t hazard_count(void);
void hazard_reset(void);

#endif
