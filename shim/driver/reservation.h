/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device addresses that the library has reserved of the driver: arenas, and memory opened by IPC. To
 * the program they are addresses that nobody reserved. Only a leaf lock of its own.
 */
#ifndef SHIM_RESERVATION_H
#define SHIM_RESERVATION_H

#include "shim/driver/hooks.h"

/* cuMemAddressReserve at a multiple of align_bytes, and cuMemAddressFree, which the driver must have. */
CUresult reservation_create(CUdeviceptr *addr, size_t size_bytes, size_t align_bytes);
void reservation_destroy(CUdeviceptr addr, size_t size_bytes);

/* Whether any of [addr, addr + size_bytes), or addr itself, is reserved so. Not in a forked child. */
bool reservation_covers(CUdeviceptr addr, size_t size_bytes);

#endif
