/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device addresses that the library has reserved: arenas, and memory opened by IPC. The program
 * must see them as addresses without a reservation. A leaf lock of its own, for changes alone.
 *
 * The addresses of an arena that has ended stay reserved until RESERVATIONS_RETIRED more have
 * ended. Otherwise the driver may give the next life's arena the same ones. Memory of the last life
 * that the program still uses or frees would then be another block. Its work would meet the pool's
 * unmapping, and the error of that sticks. Where nothing is mapped the driver refuses the use, and
 * the error does not stick, as without the library. A wish for other addresses does not serve: a
 * driver may take it or not (an H100's does not). More than a few would cost host memory of the map
 * (pool/map.h) at each place.
 */
#ifndef SHIM_RESERVATION_H
#define SHIM_RESERVATION_H

#include "shim/driver/hooks.h"

enum { RESERVATIONS_RETIRED = 4 };

/* cuMemAddressReserve at a multiple of align_bytes, and cuMemAddressFree. The driver must have
 * both. To be called in a call scope. */
CUresult reservation_create(CUdeviceptr *addr, size_t size_bytes, size_t align_bytes);
void reservation_destroy(CUdeviceptr addr, size_t size_bytes);
/* The same for an arena that has ended, later. Where addresses are short, a reservation_create that
 * fails destroys such ranges, the oldest first, until it succeeds. It awaits those that another
 * thread destroys, but none that is held up by such a wait itself (in a signal handler there). */
void reservation_retire(CUdeviceptr addr, size_t size_bytes);

/* Is addr, or any byte of [addr, addr + size_bytes), reserved so? Takes no lock, but a forked child
 * must not ask. */
bool reservation_covers(CUdeviceptr addr, size_t size_bytes);

#endif
