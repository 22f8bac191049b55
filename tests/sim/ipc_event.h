/* SPDX-License-Identifier: BSD-2-Clause */
/* Events that several processes see. A shared page counts records and completed records. Processes
 * do not share virtual clocks: a thread of the driver publishes completion in real time. Driver
 * lock. */
#ifndef SIM_IPC_EVENT_H
#define SIM_IPC_EVENT_H

#include "tests/sim/event.h"

/* Makes the shared page of an event with CU_EVENT_INTERPROCESS. Returns NULL on failure. */
struct ipc_event *ipc_event_create(void);
void ipc_event_destroy(struct ipc_event *shared);

/* Records the event in the stream, behind all work that was submitted to it. */
void ipc_event_record(struct ipc_event *shared, CUstream stream);

/* The last record of any process has completed. */
bool ipc_event_done(const struct ipc_event *shared);

/* Makes the stream wait for what is the last record now. */
void ipc_event_order(struct ipc_event *shared, CUstream stream);

#endif
