/* SPDX-License-Identifier: BSD-2-Clause */
/* Events that several processes see: a shared page counts records and completed records. Virtual
 * clocks are not shared; completion is published in real time by the driver's own thread. Driver
 * lock. */
#ifndef SIM_IPC_EVENT_H
#define SIM_IPC_EVENT_H

#include "tests/sim/event.h"

/* A new shared page for an event with CU_EVENT_INTERPROCESS. NULL when there is none to be had. */
struct ipc_event *ipc_event_create(void);
void ipc_event_destroy(struct ipc_event *shared);

/* The event has been recorded behind all that `after` stands for, in the stream. */
void ipc_event_record(struct ipc_event *shared, CUstream stream);

/* The last record, by whichever process, has completed. */
bool ipc_event_done(const struct ipc_event *shared);

/* Makes the stream wait for the last record of now. */
void ipc_event_order(struct ipc_event *shared, CUstream stream);

#endif
