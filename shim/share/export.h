/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The exporter's side of legacy IPC, see ticket.h. It keeps no record of exports. A ticket names
 * the block by address and serial, and the pool knows whether that block is still live.
 */
#ifndef SHIM_EXPORT_H
#define SHIM_EXPORT_H

#include "pool/pool.h"
#include "shim/driver/hooks.h"

/* Gives a ticket for the live block: the same 64 bytes each time, others for every other block.
 * Exposes the block. CUDA_ERROR_NOT_SUPPORTED if there can be none; the reason is logged once. */
CUresult export_block_ticket(const struct pool_block *block, CUipcMemHandle *handle);

/* Is the block a whole allocation of the driver's? Then the driver has a handle for it. */
bool export_is_native(const struct pool_block *block);
/* Can the block have a handle, ours or the driver's? */
bool export_is_capable(const struct pool_block *block);

#endif
