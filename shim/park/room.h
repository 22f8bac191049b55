/* SPDX-License-Identifier: BSD-2-Clause
 *
 * How much of each device is free, and what this process has there, asked of NVML, the driver's
 * management library. One of our own, which a checkpoint does not hold up. It is loaded at the
 * first room_open, stays loaded, and is in use from room_open to room_close; meanwhile it has its
 * own descriptors, as the driver has. A thread of its own makes the calls, and stays. On the park
 * thread. No lock of ours.
 */
#ifndef SHIM_ROOM_H
#define SHIM_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/* Finds every device of the process. NULL: room_tell works. Else why not: a static sentence without
 * a full stop. Waits some seconds for NVML at most, and calls the driver. */
const char *room_open(void);
/* How much of a device is free; UINT64_MAX: there is no such device. False: NVML does not tell, and
 * *free_bytes is 0. Waits as room_open does. */
bool room_tell(int device, uint64_t *free_bytes);
/* What NVML lists of the device for the number of this process. 0: none, as beside a checkpoint,
 * and where it lists no processes or those of another pid namespace, or took long for its first
 * list. Waits as room_open does. */
uint64_t room_own_bytes(int device);
/* Where NVML hangs it stays on, and nothing is waited for. */
void room_close(void);
/* Waits some seconds for NVML at most. From here on NVML is not called. On the thread that ends the
 * process. */
void room_at_exit(void);

#endif
