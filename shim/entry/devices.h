/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sets of devices: which memory a call of the program's may need. A set has a bit for each device
 * (device_bit). The functions ask the driver. Where it does not answer, the set is DEVICES_ALL.
 */
#ifndef SHIM_DEVICES_H
#define SHIM_DEVICES_H

#include "shim/driver/backend.h"
#include "shim/driver/hooks.h"

#include <stdint.h>

/* No memory of a device, or none that a release would help to get. */
#define DEVICES_NONE UINT64_C(0)
#define DEVICES_ALL UINT64_MAX

uint64_t devices_current(void);           /* of the current context */
uint64_t devices_context(CUcontext ctx);  /* NULL: the current one */
uint64_t devices_peers(CUcontext peer);   /* of the current context and that one */
uint64_t devices_stream(CUstream stream); /* a default one: of the current context */
uint64_t devices_green(CUgreenCtx green);
uint64_t devices_location(const CUmemLocation *location);
uint64_t devices_physical(const CUmemAllocationProp *prop);
uint64_t devices_handle(CUmemGenericAllocationHandle handle);
uint64_t devices_access(const CUmemAccessDesc *desc, size_t count);
/* All devices that reach the pool: the driver does not say on which one it lies. */
uint64_t devices_pool(CUmemoryPool pool);

#endif
