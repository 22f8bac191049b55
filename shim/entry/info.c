/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that describe memory, or make it known outside. A block of the pool must
 * look like an allocation of its own. No lock.
 */
#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/context/redzone.h"
#include "shim/driver/async_pool.h"
#include "shim/driver/hide.h"
#include "shim/driver/hooks.h"
#include "shim/driver/reservation.h"
#include "shim/entry/retry.h"
#include "shim/option/in_force.h"
#include "shim/park/gate.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/share/export.h"
#include "shim/share/import.h"

/* Memory that is away is the program's all the same (shim/park/park.h). Monitors poll this call, so
 * it wakes nobody. */
static uint64_t without_away(uint64_t free_bytes, CUdevice device)
{
    uint64_t away_bytes = context_away_bytes(device);
    return free_bytes > away_bytes ? free_bytes - away_bytes : 0;
}

/* Programs size themselves by free memory, and idle memory is available to them. So is that of the
 * driver's own pools: the driver gives it to cuMemAlloc and cuMemCreate by itself, though it does
 * not count it as free (580.159, H200). The simulated driver does not give it. There a call that
 * finds no memory trims them (shim/entry/retry.h). */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUdevice device;
    CUresult rc = retry_cuMemGetInfo_v2(free, total);
    if (rc != CUDA_SUCCESS || !free || !state_is_on() ||
        real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return rc;
    if (!in_force()->meminfo) {
        *free = without_away(*free, device);
        return rc;
    }
    size_t all = SIZE_MAX;
    if (total)
        all = *total;
    else
        real.cuDeviceTotalMem_v2(&all, device);
    struct async_stats async;
    async_pool_stats(device, &async);
    uint64_t sum = *free + context_idle_bytes(device) + async.async_idle_bytes;
    *free = min_u64(without_away(sum, device), all);
    return rc;
}

/* True: a live block of the pool holds this address. */
static bool find_live_block(CUdeviceptr dptr, struct pool_block *block)
{
    if (!state_is_on() || pool_lookup(dptr, block) != POOL_OK)
        return false;
    redzone_hide(block);
    return dptr - block->addr < block->requested_bytes;
}

/* Is the driver not to be asked about this address (shim/driver/hide.h)? Without the library freed
 * memory is no device memory. In the pool's ranges the driver would describe the pool's own
 * allocation instead. So addresses that no live block holds are hidden. An arena also has addresses
 * that are no pool's, because their memory was moved or given back. There the driver may still have
 * a mapping, of what is another block's memory by now. Memory of another process that the program
 * has closed may still be mapped too. What it has open comes first: when a context ends, the driver
 * may use its addresses again before its pool has forgotten them (context_lookup). */
static bool is_hidden(CUdeviceptr dptr)
{
    struct pool_block block;
    struct import_range opened;
    if (!state_is_on() || import_find(dptr, &opened))
        return false;
    switch (context_lookup(dptr, &block)) {
    case POOL_FOREIGN:
        return reservation_covers(dptr, 1) || import_was_closed(dptr);
    case POOL_OK:
        redzone_hide(&block);
        return dptr - block.addr >= block.requested_bytes;
    case POOL_INVALID:
    case POOL_NOMEM:
    case POOL_LIMIT:
    case POOL_PASS:
        break;
    }
    return true;
}

static CUdeviceptr hide_freed(CUdeviceptr dptr)
{
    return hide_pool_address(dptr, is_hidden(dptr));
}

/* Ends the use or question; `return` it. */
static CUresult end_use(const struct gate_use *use, CUresult rc)
{
    gate_use_end(use);
    return rc;
}

/* The driver is asked first: without a live current context it refuses. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
    struct pool_block block;
    struct import_range opened;
    struct gate_use use;
    CUresult rc = gate_ask_begin(&use, dptr);
    if (rc == CUDA_SUCCESS)
        rc = end_use(&use, real.cuMemGetAddressRange_v2(base, size, hide_freed(dptr)));
    if (rc != CUDA_SUCCESS)
        return rc;
    if (import_find(dptr, &opened)) {
        block.addr = opened.addr;
        block.requested_bytes = opened.size_bytes;
    } else if (!find_live_block(dptr, &block)) {
        return rc;
    }
    if (base)
        *base = block.addr;
    if (size)
        *size = block.requested_bytes;
    return CUDA_SUCCESS;
}

/* The driver reports no access flags for a live allocation of cuMemAlloc (measured). */
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    struct pool_block block;
    struct import_range opened;
    struct gate_use use;
    CUresult rc = gate_ask_begin(&use, ptr);
    if (rc == CUDA_SUCCESS)
        rc = end_use(&use, real.cuMemGetAccess(flags, location, hide_freed(ptr)));
    if (rc == CUDA_SUCCESS && (import_find(ptr, &opened) || find_live_block(ptr, &block)))
        *flags = 0;
    return rc;
}

/* The driver's answer for an allocation of its own in place of the block: one of this process,
 * or one opened by IPC. */
struct description {
    CUcontext ctx;
    CUdevice device;
    CUdeviceptr addr;
    size_t size_bytes;
    unsigned long long buffer_id;
    bool ipc_capable;
    bool own; /* a block of this process; false: opened by IPC */
    bool sync_memops;
};

/* False: the driver's own answer is right. */
static bool find_description(CUdeviceptr ptr, struct description *d)
{
    struct pool_block block;
    struct import_range opened;
    if (import_find(ptr, &opened)) {
        *d = (struct description){.ctx = opened.ctx,
                                  .device = opened.device,
                                  .addr = opened.addr,
                                  .size_bytes = opened.size_bytes,
                                  .buffer_id = opened.buffer_id};
        return true;
    }
    if (!find_live_block(ptr, &block))
        return false;
    const struct context *c = pool_owner(block.pool);
    *d = (struct description){.ctx = atomic_load(&c->ctx),
                              .device = c->device,
                              .addr = block.addr,
                              .size_bytes = block.requested_bytes,
                              .buffer_id = block.serial,
                              .ipc_capable = export_is_capable(&block),
                              .own = true,
                              .sync_memops = block.sync_memops};
    return true;
}

/* Corrects the driver's answer in *data. The driver has written a truth value in its full width, so
 * writing the first byte is enough. */
static void describe(const struct description *d, CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = d->ctx;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = d->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = d->addr;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = d->size_bytes;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = d->buffer_id;
        break;
    /* Measured: the driver's mapping of an allocation is the 2 MiB pages that hold it. Small
     * allocations share a page. Here the driver would describe one chunk, though the block may lie
     * in several, or a whole segment. */
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = round_down(d->addr, GRANULE_BYTES);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data =
            round_up(d->addr + d->size_bytes, GRANULE_BYTES) - round_down(d->addr, GRANULE_BYTES);
        break;
    /* The number of the physical memory. Programs may keep a registration of the mapping under it.
     * The driver's number of a chunk stays while the memory behind a block's other chunks changes,
     * and several blocks share it. So each block has a number of its own, new at each allocation.
     * The driver gives small allocations of one page the same number. With different numbers a
     * program registers a page twice, which is not wrong. */
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = d->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *)data = d->ipc_capable;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        if (d->own)
            *(unsigned char *)data = d->sync_memops;
        break;
#if CUDA_VERSION >= 12080
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        /* Measured: true for every allocation, even without a decompression engine. Where there is
         * one, arena memory is made for it (shim/driver/device.c). */
        if (d->own)
            *(unsigned char *)data = 1;
        break;
#endif
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        /* Measured: so for every allocation, in every context, with or without peer access. */
        *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0; /* see cuMemRetainAllocationHandle */
        break;
    default:
        break;
    }
}

/* After a call that succeeded the memory is known outside, or has an attribute of its own. Then the
 * pool must not hand it out again: it is exposed. */
static void expose(CUresult rc, CUdeviceptr dptr)
{
    if (rc == CUDA_SUCCESS && state_is_on())
        context_expose(dptr);
}

/* The pool notes for each block whether it has SYNC_MEMOPS. The driver's own answer is for a whole
 * segment or chunk, which may have the attribute because of another block. */
static void set_memops(CUresult rc, CUdeviceptr dptr)
{
    expose(rc, dptr);
    if (rc == CUDA_SUCCESS && state_is_on())
        pool_set_sync_memops(dptr, true);
}

/* A question for tokens also sets SYNC_MEMOPS (documentation of cuPointerGetAttribute). */
static void note_question(CUresult rc, CUpointer_attribute attribute, CUdeviceptr dptr)
{
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        set_memops(rc, dptr);
}

/* What a question for tokens exposes does not go away: the mark lasts until then. */
static CUresult get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct description d;
    CUresult rc = real.cuPointerGetAttribute(data, attribute, hide_freed(ptr));
    if (rc == CUDA_SUCCESS && data && find_description(ptr, &d))
        describe(&d, attribute, data);
    note_question(rc, attribute, ptr);
    return rc;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct gate_use use;
    CUresult rc = gate_ask_begin(&use, ptr);
    return rc == CUDA_SUCCESS ? end_use(&use, get_attribute(data, attribute, ptr)) : rc;
}

/* Asked for several attributes at once, the driver leaves 0 where the single question is refused.
 * Only this attribute's answer depends on the asking thread: it needs a current context. */
static bool is_left_out(CUpointer_attribute attribute, CUdeviceptr ptr)
{
    unsigned flags;
    return attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS &&
           real.cuPointerGetAttribute(&flags, attribute, ptr) != CUDA_SUCCESS;
}

static CUresult get_attributes(unsigned count, CUpointer_attribute *attributes, void **data,
                               CUdeviceptr ptr)
{
    struct description d;
    CUresult rc = real.cuPointerGetAttributes(count, attributes, data, hide_freed(ptr));
    if (rc == CUDA_SUCCESS && find_description(ptr, &d))
        for (unsigned i = 0; i < count; i++)
            if (data[i] && !is_left_out(attributes[i], ptr))
                describe(&d, attributes[i], data[i]);
    for (unsigned i = 0; rc == CUDA_SUCCESS && i < count; i++)
        note_question(rc, attributes[i], ptr);
    return rc;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr)
{
    struct gate_use use;
    CUresult rc = gate_ask_begin(&use, ptr);
    return rc == CUDA_SUCCESS ? end_use(&use, get_attributes(count, attributes, data, ptr)) : rc;
}

/* A program can always take SYNC_MEMOPS off an allocation of its own. A segment or chunk keeps it,
 * because other blocks in it may need it. Memory that is more synchronous than necessary does no
 * harm. True: the answer is success. False: the block is a whole allocation of the driver, which
 * is asked. */
static bool unset_memops(const struct pool_block *block)
{
    pool_set_sync_memops(block->addr, false);
    return !export_is_native(block);
}

static CUresult set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct pool_block block;
    bool ours =
        attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value && find_live_block(ptr, &block);
    bool off = ours && !*(const unsigned *)value;
    if (off && unset_memops(&block))
        return CUDA_SUCCESS;
    CUresult rc = real.cuPointerSetAttribute(value, attribute, hide_freed(ptr));
    if (rc == CUDA_ERROR_NOT_SUPPORTED && ours)
        log_once(LOG_LEVEL_WARN, "the program sets SYNC_MEMOPS, which mapped memory lacks: "
                                 "run it with GPUCACHE_BACKING=segment");
    if (ours && !off)
        set_memops(rc, ptr);
    return rc;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct gate_use use;
    CUresult rc = gate_ask_begin(&use, ptr);
    return rc == CUDA_SUCCESS ? end_use(&use, set_attribute(value, attribute, ptr)) : rc;
}

static bool any_live(CUdeviceptr at, CUdeviceptr end)
{
    struct pool_block block;
    for (; at < end; at = round_down(at, UNIT_BYTES) + UNIT_BYTES)
        if (pool_lookup(at, &block) == POOL_OK)
            return true;
    return false;
}

/* Does the range have a page in which no live block holds any of it? A page is 2 MiB. Without the
 * library the driver has no memory there, but where small blocks share the page. */
static bool has_freed_page(CUdeviceptr dptr, size_t size)
{
    struct pool_block block;
    CUdeviceptr end = dptr + size;
    for (CUdeviceptr at = dptr, next; at < end; at = next) {
        next = min_u64(round_down(at, GRANULE_BYTES) + GRANULE_BYTES, end);
        if (context_lookup(at, &block) == POOL_FOREIGN)
            return is_hidden(at); /* what is behind other memory, the driver knows */
        if (!any_live(at, next))
            return true;
    }
    return false;
}

/* Below it there is no memory of any kind. A multiple of the host's page. */
#define LOWEST_ADDR UINT64_C(65536)

/* The range covers whole pages and may hold several small blocks, as without the library. There is
 * no handle of freed memory, which may be another block's by now. There the driver is asked about a
 * place without memory, of the same alignment. */
static CUresult get_range_handle(void *handle, CUdeviceptr dptr, size_t size,
                                 CUmemRangeHandleType type, unsigned long long flags)
{
    struct pool_block block;
    CUdeviceptr asked = dptr;
    if (state_is_on() && has_freed_page(dptr, size))
        asked = dptr % LOWEST_ADDR;
    CUresult rc = real.cuMemGetHandleForAddressRange(handle, asked, size, type, flags);
    if (rc != CUDA_SUCCESS || !state_is_on() || asked != dptr)
        return rc;
    for (CUdeviceptr at = dptr, end = dptr + size; at < end;) {
        enum pool_status found = pool_lookup(at, &block);
        if (found == POOL_FOREIGN)
            break;
        if (found == POOL_OK)
            context_expose(at);
        at = found == POOL_OK ? block.addr + block.size_bytes : (at & ~UINT64_C(511)) + 512;
    }
    return rc;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags)
{
    struct gate_use use;
    CUresult rc = gate_use_begin(&use);
    return rc == CUDA_SUCCESS ? end_use(&use, get_range_handle(handle, dptr, size, type, flags))
                              : rc;
}
