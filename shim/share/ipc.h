/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Legacy CUDA IPC (cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle) for memory that a pool
 * holds. A block that is an allocation of the driver's own (a large one in segment backing) has the
 * driver's handle, which any process can open. Every other block gets a handle of ours, which a process
 * under this library opens by asking the exporter for the memory:
 *
 *     importer                                exporter
 *     handle: token, address, serial          the door: a socket with the token's name (ipc_door.h)
 *       asks at the door, and   ──────────▶   control thread: is that block still live?
 *       brings a socket for     ◀──────────   up to 32 of the block's chunks as descriptors, or
 *       the answer; maps them                 the driver's handle of the segment, and the offset
 *       asks for the next ones  ──────────▶   …
 *
 * Why it is safe:
 * - Never wrong memory. A serial names one block of a process for ever, a token one process. The exporter
 *   takes hold of the memory behind the address first and then looks whether the block with that serial
 *   is still live: if so it was live all along, and a live block's chunks are neither moved nor given back.
 *   A handle of ours is nothing that the driver accepts (measured), so a process without the library gets
 *   the driver's error.
 * - Never handed out again. An exported block is tainted: once freed it is nobody's until its memory goes
 *   back to the driver as a whole. The importer's mapping keeps the physical memory, whatever the exporter
 *   does to its own; nobody is given it meanwhile.
 * - Only to the same user: both sides look at the credentials that the kernel reports of each
 *   message.
 * - Others can delay nobody: see ipc_wire.h. Of the same user's processes none can make the
 *   exporter wait: its control thread answers few questions at a time, keeps nothing of them, and
 *   sends without waiting.
 *
 * What needs memory of the driver's own after all: an importer without the library, in another network
 * namespace (socket names end there), or one that opens handles while the exporter is stopped.
 */
#ifndef SHIM_IPC_H
#define SHIM_IPC_H

#include "pool/pool.h"
#include "shim/driver/hooks.h"

/* A handle for the live block: the same 64 bytes each time, others for every other block. Taints it.
 * CUDA_ERROR_NOT_SUPPORTED if there can be none; the reason is logged once. */
CUresult ipc_export(const struct pool_block *block, CUipcMemHandle *handle);

/* Is the block an allocation of the driver's, all of it? */
bool ipc_is_native(const struct pool_block *block);
/* Are handles to be had for this block, ours or the driver's? */
bool ipc_is_capable(const struct pool_block *block);

typedef CUresult (*ipc_open_fn)(CUdeviceptr *, CUipcMemHandle, unsigned);

bool ipc_is_ours(const CUipcMemHandle *handle);
/* Opens a handle of ours in the current context, as the driver would: the same block again in the same
 * context is the same address, counted. `native` opens the driver's own handles. */
CUresult ipc_open(CUdeviceptr *addr, const CUipcMemHandle *handle, unsigned flags, ipc_open_fn native);
/* False: nothing that ipc_open returned. */
bool ipc_close(CUdeviceptr addr, CUresult *rc);
/* Is something closed that could not be taken away yet, as a capture is open? */
bool ipc_any_closed(void);
bool ipc_any_open(void);
/* The context is gone: so is what was opened in it. */
void ipc_forget(CUcontext ctx);
/* The contexts in which something was opened that is still there: up to max of them. Returns how
 * many. */
size_t ipc_contexts(CUcontext *ctx, size_t max);

/* What was opened around an address. */
struct ipc_range {
    CUdeviceptr addr; /* of the exporter's block */
    size_t size_bytes;
    CUcontext ctx; /* in which it was opened, and its device: also of memory that is another device's */
    CUdevice device;
    unsigned long long buffer_id;
};
bool ipc_find(CUdeviceptr addr, struct ipc_range *range);
/* Every mapped range that was opened in contexts of the device. */
void ipc_for_each_range(CUdevice device, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg);
/* Contexts of other devices in which there are such: up to max of them. Returns how many. */
size_t ipc_imports_elsewhere(CUdevice device, CUcontext *ctx, CUdevice *owner, size_t max);

#endif
