/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Access of devices to mapped memory. The driver grants it for each mapped range, and for whole
 * devices. This file knows which devices may access memory of which other one. Pools ask it when
 * they map memory. No lock: one word of bits for each device.
 */
#ifndef SHIM_ACCESS_H
#define SHIM_ACCESS_H

#include "shim/driver/backend.h"

#include <stdbool.h>
#include <stdint.h>

/* From here on `peer` may access memory that is mapped on `owner`, or may not. Changes no range. */
void access_set_peer(CUdevice owner, CUdevice peer, bool allowed);
/* The devices besides `owner` that may access its memory, a bit for each. */
uint64_t access_peers(CUdevice owner);
/* Gives the device and its peers access to a mapped range. In a call scope. Returns the driver's
 * code. */
CUresult access_allow(CUdevice device, uint64_t addr, uint64_t size_bytes);
/* Grants or takes the access of `peer` to a mapped range; a call scope of its own. Returns the
 * driver's code. */
CUresult access_change(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
