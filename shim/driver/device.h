/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver: one per context.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "shim/driver/backend.h"

/* Fills *d, which must be all zero, for the calling thread's current context. */
void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream);

/* The same one for another context of its device, nothing of whose predecessor is in use any
 * more. */
void device_renew(struct device_backend *d, CUcontext ctx, bool single_stream);

/* The device's primary context, alive or not, as a retain by the program gave it. NULL: no retain
 * was seen. */
CUcontext device_primary(CUdevice device);
void device_set_primary(CUdevice device, CUcontext primary);
/* Asks the driver. */
bool device_primary_is_active(CUdevice device);

/* Devices that may access the memory of `owner` besides itself: pools ask when they map memory. */
void device_peer_allow(CUdevice owner, CUdevice peer, bool allowed);
uint64_t device_peers(CUdevice owner); /* a bit for each */
/* Gives the device and those access to a mapped range. In a row, or what visit_run runs. */
CUresult device_allow(CUdevice device, uint64_t addr, uint64_t size_bytes);
/* Grants or takes the access of `peer` to a mapped range. Returns the driver's code. */
CUresult device_peer_range(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
