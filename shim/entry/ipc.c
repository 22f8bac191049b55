/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of legacy CUDA IPC. Tickets (shim/share/ticket.h) are ours. The driver
 * serves all else: its own allocations, and handles from programs without the library. No
 * lock. */
#include "shim/context/context.h"
#include "shim/context/redzone.h"
#include "shim/driver/error.h"
#include "shim/driver/hide.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/park/gate.h"
#include "shim/process/cancel.h"
#include "shim/process/state.h"
#include "shim/share/export.h"
#include "shim/share/import.h"
#include "shim/stats/counters.h"
#include "shim/trace/trace.h"

#include <errno.h>

static CUresult export_block(CUipcMemHandle *handle, const struct pool_block *block)
{
    bool native = export_is_native(block);
    CUresult rc =
        native ? real.cuIpcGetMemHandle(handle, block->addr) : export_block_ticket(block, handle);
    if (rc == CUDA_SUCCESS) {
        if (native)
            context_expose(block->addr);
        counter_add(COUNTER_IPC_HANDLE, 1);
    }
    return rc;
}

/* As natively: a pointer to any place in an allocation gets the handle of the allocation. */
static CUresult get_handle(CUipcMemHandle *handle, CUdeviceptr dptr)
{
    struct pool_block block;
    int saved_errno = errno;
    enum pool_status status = context_lookup(dptr, &block);
    CUresult rc;
    if (status == POOL_OK)
        redzone_hide(&block);
    if (status == POOL_FOREIGN) {
        rc = real.cuIpcGetMemHandle(handle, dptr);
    } else if (status == POOL_OK && dptr - block.addr < block.requested_bytes) {
        int cancel = cancel_forbid();
        rc = error_here();
        if (rc == CUDA_SUCCESS)
            rc = export_block(handle, &block);
        cancel_allow(cancel);
    } else { /* for dptr the driver would give a handle of the pool's own memory */
        rc = real.cuIpcGetMemHandle(handle, hide_host_address());
    }
    errno = saved_errno;
    return rc;
}

/* A use: the memory is known outside from then on, and stays. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr)
{
    struct gate_use use;
    if (!handle || !state_is_on())
        return real.cuIpcGetMemHandle(handle, dptr);
    CUresult rc = gate_use_begin(&use);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = get_handle(handle, dptr);
    gate_use_end(&use);
    return rc;
}

static CUresult open_handle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned flags,
                            mapping_open_fn native)
{
    if (!ticket_is_ours(&handle) || !hooks_init() || !library_is_started())
        return native(dptr, handle, flags);
    int saved_errno = errno, cancel = cancel_forbid();
    CUresult rc;
    struct retry_steps steps = {0};
    bool mapped;
    do
        rc = import_open(dptr, &handle, flags, native, &mapped);
    while (retry_is_error(rc) && retry_note_error(rc) && retry_release(devices_current(), &steps));
    cancel_allow(cancel);
    if (mapped)
        atomic_fetch_or(&pool_watch, POOL_WATCH_ERRORS); /* of submissions */
    if (rc == CUDA_SUCCESS)
        counter_add(COUNTER_IPC_OPEN, 1);
    errno = saved_errno;
    return rc;
}

static CUresult note_open(CUresult rc, const CUdeviceptr *dptr, const void *caller)
{
    if (rc == CUDA_SUCCESS)
        TRACE_CALL(IPC_OPEN, .b = *dptr, .caller = caller);
    return rc;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned flags)
{
    CUresult rc = open_handle(dptr, handle, flags, retry_cuIpcOpenMemHandle);
    return note_open(rc, dptr, __builtin_return_address(0));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned flags)
{
    CUresult rc = open_handle(dptr, handle, flags, retry_cuIpcOpenMemHandle_v2);
    return note_open(rc, dptr, __builtin_return_address(0));
}

/* Of memory that is closed already the driver may still have a mapping. */
CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUresult rc;
    int saved_errno = errno, cancel = cancel_forbid();
    bool ours = state_is_on() && import_close(dptr, &rc);
    cancel_allow(cancel);
    errno = saved_errno;
    if (ours)
        return rc;
    bool closed = state_is_on() && import_was_closed(dptr);
    return real.cuIpcCloseMemHandle(hide_pool_address(dptr, closed));
}
