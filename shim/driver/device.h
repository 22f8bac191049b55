/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's backend on the CUDA driver (backend.h): what makes one, and access of peers.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

#include "shim/driver/backend.h"

/* Fills *d, which must be all zero, for ctx, the calling thread's current context.
 * single_stream: the pool may rely on the order of one stream (pool/backend.h). */
void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream);

/* Fills *d anew, for another context of its device. Nothing of the context before may be in use. */
void device_renew(struct device_backend *d, CUcontext ctx, bool single_stream);

/* Devices that may access the memory of `owner` besides itself. A pool asks when it maps memory. */
void device_peer_allow(CUdevice owner, CUdevice peer, bool allowed);
uint64_t device_peers(CUdevice owner); /* a bit for each */
/* Gives the device and those access to a mapped range. In a row, or what visit_run runs. */
CUresult device_allow(CUdevice device, uint64_t addr, uint64_t size_bytes);
/* Grants or takes the access of `peer` to a mapped range. Returns the driver's code. */
CUresult device_peer_range(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
