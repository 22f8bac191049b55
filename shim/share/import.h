/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The importer's side of legacy IPC: memory of other processes that this one has opened, see
 * ticket.h.
 */
#ifndef SHIM_IMPORT_H
#define SHIM_IMPORT_H

#include "shim/driver/hooks.h"
#include "shim/share/mapping.h"

/* Opens a ticket in the current context, as the driver opens a handle. A block that is opened again
 * in the same context has the same address. The opens are counted. `native` opens the driver's own
 * handles. *mapped: this call mapped memory of another process. */
CUresult import_open(CUdeviceptr *addr, const CUipcMemHandle *handle, unsigned flags,
                     mapping_open_fn native, bool *mapped);
/* Closes an address that import_open gave. False: it gave no such address. */
bool import_close(CUdeviceptr addr, CUresult *rc);
bool import_any_open(void);
/* Does closed memory wait for work, or the end of a capture, before it is unmapped? */
bool import_any_closed(void);
/* Before the program ends the context: nobody finds the memory that was opened in it. With false
 * after it: the context did not end. */
void import_hide(CUcontext ctx, bool hidden);
/* The context has ended. Unmaps and forgets all memory that was opened in it. */
void import_forget(CUcontext ctx);
/* The contexts that have opened or closed memory that is still there: up to max of them. Returns
 * how many. */
size_t import_contexts(CUcontext *ctx, size_t max);

/* The opened block around an address. */
struct import_range {
    CUdeviceptr addr; /* of the exporter's block */
    size_t size_bytes;
    CUcontext ctx;   /* in which it was opened */
    CUdevice device; /* of that context, even if the memory is another device's */
    unsigned long long buffer_id;
};
bool import_find(CUdeviceptr addr, struct import_range *range);
/* Is addr in a block that the program has closed and that is still mapped? */
bool import_was_closed(CUdeviceptr addr);
/* Every mapped range that was opened in contexts of the device. */
void import_for_each_range(CUdevice device,
                           void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg);
/* The devices whose contexts have such ranges, a bit for each. */
uint64_t import_devices(void);

#endif
