/* SPDX-License-Identifier: BSD-2-Clause */
/* The hazard checker. It remembers the last accesses to each byte of device memory. It reports two
 * accesses if one of them writes and none is ordered before the other. The program establishes the
 * order: by streams, event and context waits, the legacy stream's rules, and what the host has seen
 * complete. Two accesses in one ownership (simOwnerBegin) are never reported. Driver lock. */
#ifndef SIM_HAZARD_H
#define SIM_HAZARD_H

#include "tests/sim/stream.h"

/* The command is being submitted to the stream, whose clock says what comes before it. Gives the
 * stream's clock its next number. */
void hazard_command(CUstream stream, const struct command *command);

/* A call is about to free or unmap the memory. Reports work that may still touch it, and forgets
 * the range. */
void hazard_release(uint64_t lo, uint64_t hi, const char *call);

/* The driver itself orders whatever comes next in this range. Forgets what is known of it. */
void hazard_forget(uint64_t lo, uint64_t hi);

uint64_t hazard_count(void);
void hazard_reset(void);

#endif
