/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Access of devices to mapped memory. The driver grants it for each mapped range, and for whole
 * devices. This file knows which devices may access memory of which other one. Pools ask it when
 * they map memory. No lock: one word of bits for each device.
 *
 * Once a device has had a peer, one thread at a time maps memory, unmaps it or changes the access
 * to it: that thread has the turn (access.c).
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
/* cuMemMap and cuMemUnmap, each in a turn. In a call scope. Return the driver's code. */
CUresult access_map(uint64_t addr, uint64_t size_bytes, uint64_t handle);
CUresult access_unmap(uint64_t addr, uint64_t size_bytes);
/* Gives the device and its peers access to a mapped range, in a turn. In a call scope. Returns the
 * driver's code. */
CUresult access_allow(CUdevice device, uint64_t addr, uint64_t size_bytes);
/* Waits for the turn, some 2 s at most. Returns what access_end_turn needs. */
bool access_begin_turn(void);
void access_end_turn(bool taken);
/* Grants or takes the access of `peer` to a mapped range; a call scope of its own. In a turn of the
 * caller's. Returns the driver's code. */
CUresult access_change(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes);

#endif
