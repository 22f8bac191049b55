/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device addresses that the library has reserved: arenas, and memory opened by IPC. The program
 * must see them as addresses without a reservation. A leaf lock of its own, for changes alone.
 */
#ifndef SHIM_RESERVATION_H
#define SHIM_RESERVATION_H

#include "shim/driver/hooks.h"

/* cuMemAddressReserve at a multiple of align_bytes, and cuMemAddressFree. The driver must have
 * both. wish: where the caller would like it, 0: anywhere; the driver may choose another place. To
 * be called in a call scope. */
CUresult reservation_create(CUdeviceptr *addr, size_t size_bytes, size_t align_bytes,
                            CUdeviceptr wish);
void reservation_destroy(CUdeviceptr addr, size_t size_bytes);

/* Is addr, or any byte of [addr, addr + size_bytes), reserved so? Takes no lock, but a forked child
 * must not ask. */
bool reservation_covers(CUdeviceptr addr, size_t size_bytes);

#endif
