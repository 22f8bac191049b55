/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The memory behind a ticket, fetched from its exporter and mapped in this process. It is either an
 * allocation of the driver's, or the exporter's chunks that hold the block. The chunks are mapped
 * side by side in a reservation of our own. No lock.
 */
#ifndef SHIM_MAPPING_H
#define SHIM_MAPPING_H

#include "shim/share/ticket.h"

struct mapping {
    CUdeviceptr base;
    uint64_t total_bytes; /* mapped from base on; 0: the driver opened it */
    CUdeviceptr addr;     /* of the block */
    size_t size_bytes;
    uint64_t peers; /* devices that got access, a bit for each (access_peers) */
};

/* cuIpcOpenMemHandle, for the driver's own handles. */
typedef CUresult (*mapping_open_fn)(CUdeviceptr *, CUipcMemHandle, unsigned);

/* Can this driver map memory of other processes? */
bool mapping_is_supported(void);
/* Fetches the memory into the current context. It waits for the exporter up to 60 s. Leaves *m
 * untouched if it fails, and keeps errno. */
CUresult mapping_create(struct mapping *m, const struct ticket *ticket, unsigned flags,
                        mapping_open_fn native);
/* Unmaps the memory. In a call scope: in the context, or after the context's end (then the driver
 * has closed its own). */
void mapping_destroy(const struct mapping *m, bool context_is_gone);

#endif
