/* SPDX-License-Identifier: BSD-2-Clause */
/* Virtual memory management: reservations, physical handles, mappings, access per device. The calls
 * need no current context and are legal in captures. They order nothing and wait for nothing
 * (measured), so to unmap memory that work in flight may touch is a hazard. */
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/hazard.h"
#include "tests/sim/memory.h"

static struct ranges reservations = {.seed = 3};

bool memory_reserved(uint64_t addr)
{
    return address_ours(addr) || range_find(&reservations, addr) != NULL;
}

static bool aligned(uint64_t addr, uint64_t size)
{
    return size > 0 && addr % PAGE_BYTES == 0 && size % PAGE_BYTES == 0 && addr + size > addr;
}

static CUresult reserve(CUdeviceptr *out, uint64_t size, uint64_t alignment, CUdeviceptr hint,
                        unsigned long long flags)
{
    if (out == NULL || flags != 0 || size == 0 || size % PAGE_BYTES != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < PAGE_BYTES)
        alignment = PAGE_BYTES;
    REFUSE(size + alignment < size || size > (uint64_t)1 << 47, OUT_OF_MEMORY);
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    long at = -1;
    uint64_t lo = 0;
    if (hint != 0 && hint % alignment == 0) {
        at = syscall(SYS_mmap, hint, size, PROT_NONE, kind | MAP_FIXED_NOREPLACE, -1, 0);
        lo = hint;
    }
    if (at == -1) {
        at = syscall(SYS_mmap, NULL, size + alignment, PROT_NONE, kind, -1, 0);
        REFUSE(at == -1, OUT_OF_MEMORY);
        lo = round_up((uint64_t)at, alignment);
        if (lo > (uint64_t)at)
            syscall(SYS_munmap, at, lo - (uint64_t)at);
        uint64_t end = (uint64_t)at + size + alignment;
        if (end > lo + size)
            syscall(SYS_munmap, lo + size, end - lo - size);
    }
    range_add(&reservations, sizeof(struct range), lo, lo + size);
    *out = lo;
    return CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr addr, uint64_t size)
{
    struct range *node = range_find(&reservations, addr);
    REFUSE(node == NULL || node->lo != addr || node->hi - node->lo != size, INVALID_VALUE);
    struct memory *mapped = memory_from(addr);
    REFUSE(mapped != NULL && mapped->range.lo < addr + size, INVALID_VALUE);
    syscall(SYS_munmap, addr, size);
    range_delete(&reservations, node);
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, uint64_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    const int shareable = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (out == NULL || prop == NULL || flags != 0 || size == 0 || size % PAGE_BYTES != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        ((int)prop->requestedHandleTypes & ~shareable) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    REFUSE(!device_valid(prop->location.id), INVALID_DEVICE);
    struct physical *physical =
        physical_create(prop->location.id, size, (int)prop->requestedHandleTypes & shareable);
    REFUSE(physical == NULL, OUT_OF_MEMORY);
    api_charge_size(FN_cuMemCreate, size);
    physical->properties = *prop;
    physical->handles = 1;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

static struct physical *of_handle(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical_valid(physical) ? physical : NULL;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    if (multicast_release(handle))
        return CUDA_SUCCESS;
    struct physical *physical = of_handle(handle);
    REFUSE(physical == NULL || physical->handles == 0, INVALID_VALUE);
    physical->handles--;
    if (physical->references == 1)
        api_charge_size(FN_cuMemRelease, physical->size);
    physical_release(physical);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr addr, uint64_t size, uint64_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct physical *physical = of_handle(handle);
    struct range *node = range_find(&reservations, addr);
    struct memory *above = memory_from(addr);
    if (physical == NULL || flags != 0 || offset != 0 || !aligned(addr, size) ||
        size != physical->size || node == NULL || addr + size > node->hi ||
        (above != NULL && above->range.lo < addr + size))
        return CUDA_ERROR_INVALID_VALUE;
    struct memory *memory = memory_add(MEMORY_MAPPED, addr, size, NULL);
    memory->device = physical->device;
    memory->physical = physical_retain(physical);
    memory->host = physical->host;
    physical->first_addr = physical->first_addr ? physical->first_addr : addr;
    return CUDA_SUCCESS;
}

/* [addr, addr + size) consists of whole mappings without a gap. */
static bool whole_mappings(CUdeviceptr addr, uint64_t size)
{
    if (!aligned(addr, size))
        return false;
    for (uint64_t at = addr; at < addr + size;) {
        struct memory *memory = memory_find(at);
        if (memory == NULL || memory->kind != MEMORY_MAPPED || memory->range.lo != at ||
            memory->range.hi > addr + size)
            return false;
        at = memory->range.hi;
    }
    return true;
}

static void fail_if_it_works(CUcontext context, void *device)
{
    if (context->device == *(const int *)device && context->pending > 0)
        context_fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static CUresult unmap(CUdeviceptr addr, uint64_t size)
{
    REFUSE(!whole_mappings(addr, size), INVALID_VALUE);
    if (config.unmap_faults)
        context_each(fail_if_it_works, &memory_find(addr)->device);
    api_charge_size(FN_cuMemUnmap, size);
    hazard_release(addr, addr + size, "cuMemUnmap");
    for (uint64_t at = addr; at < addr + size;) {
        struct memory *memory = memory_find(at);
        at = memory->range.hi;
        if (memory->physical->first_addr == memory->range.lo)
            memory->physical->first_addr = 0;
        memory_drop(memory);
    }
    return CUDA_SUCCESS;
}

static bool is_reached(const struct physical *physical, int device)
{
    for (const struct memory *memory = memory_from(0); memory != NULL;
         memory = memory_from(memory->range.hi))
        if (memory->physical == physical && (memory->readable >> device) & 1)
            return true;
    return false;
}

/* Memory for GPUDirect RDMA with several mappings, whose first one was taken away: the driver gives
 * access to no device that has none so far, until the memory is mapped once more, anywhere (two
 * H200, 580.159; without that flag it does). */
static bool lost_its_first(const struct memory *memory, const CUmemAccessDesc *desc)
{
    const struct physical *physical = memory->physical;
    return physical->properties.allocFlags.gpuDirectRDMACapable && physical->first_addr == 0 &&
           desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->location.id != physical->device &&
           !is_reached(physical, desc->location.id);
}

static CUresult set_access(CUdeviceptr addr, uint64_t size, const CUmemAccessDesc *desc,
                           size_t count)
{
    REFUSE(desc == NULL || count == 0 || !whole_mappings(addr, size), INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        REFUSE(desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE, NOT_SUPPORTED);
        REFUSE(!device_valid(desc[i].location.id), INVALID_DEVICE);
        REFUSE(desc[i].location.id != memory_find(addr)->device && !config.peers, INVALID_DEVICE);
    }
    api_charge_size(FN_cuMemSetAccess, size);
    for (uint64_t at = addr; at < addr + size;) {
        struct memory *memory = memory_find(at);
        for (size_t i = 0; i < count; i++) {
            REFUSE(lost_its_first(memory, &desc[i]), INVALID_VALUE);
            uint32_t bit = (uint32_t)1 << desc[i].location.id;
            bool read = desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
            bool write = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            memory->readable = read ? memory->readable | bit : memory->readable & ~bit;
            memory->writable = write ? memory->writable | bit : memory->writable & ~bit;
        }
        at = memory->range.hi;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(unsigned long long *out, const CUmemLocation *location, CUdeviceptr addr)
{
    struct memory *memory = memory_find(addr);
    bool plain = memory != NULL && (memory->kind == MEMORY_PAGES || memory->kind == MEMORY_SMALL);
    if (out == NULL || location == NULL || memory == NULL ||
        (memory->kind != MEMORY_MAPPED && !plain))
        return CUDA_ERROR_INVALID_VALUE;
    REFUSE(location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id),
           INVALID_DEVICE);
    /* Plain memory: measured on an H200. */
    *out = plain                                    ? CU_MEM_ACCESS_FLAGS_PROT_NONE
           : (memory->writable >> location->id) & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : (memory->readable >> location->id) & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                    : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *out, void *pointer)
{
    struct memory *memory = memory_find((uint64_t)(uintptr_t)pointer);
    REFUSE(out == NULL || memory == NULL || memory->kind != MEMORY_MAPPED, INVALID_VALUE);
    memory->physical->handles++;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)physical_retain(memory->physical);
    return CUDA_SUCCESS;
}

static CUresult properties(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
    struct physical *physical = of_handle(handle);
    REFUSE(out == NULL || physical == NULL, INVALID_VALUE);
    *out = physical->properties;
    return CUDA_SUCCESS;
}

/* VMM calls fail on devices without it. */
static CUresult supported(void)
{
    return config.vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}
#define IF_SUPPORTED(call) (supported() == CUDA_SUCCESS ? (call) : CUDA_ERROR_NOT_SUPPORTED)

API(cuMemGetAllocationGranularity,
    (size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option),
    IF_SUPPORTED(NEEDS(out != NULL && prop != NULL, INVALID_VALUE)
                     NEEDS((int)option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, INVALID_VALUE)
                         GIVE(out, PAGE_BYTES)))
API(cuMemAddressReserve,
    (CUdeviceptr * out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags),
    IF_SUPPORTED(reserve(out, size, alignment, hint, flags)))
API(cuMemAddressFree, (CUdeviceptr addr, size_t size), IF_SUPPORTED(unreserve(addr, size)))
API(cuMemCreate,
    (CUmemGenericAllocationHandle * out, size_t size, const CUmemAllocationProp *prop,
     unsigned long long flags),
    IF_SUPPORTED(create(out, size, prop, flags)))
API(cuMemRelease, (CUmemGenericAllocationHandle handle), IF_SUPPORTED(release(handle)))
API(cuMemMap,
    (CUdeviceptr addr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
     unsigned long long flags),
    IF_SUPPORTED(map(addr, size, offset, handle, flags)))
API(cuMemUnmap, (CUdeviceptr addr, size_t size), IF_SUPPORTED(unmap(addr, size)))
API(cuMemSetAccess, (CUdeviceptr addr, size_t size, const CUmemAccessDesc *desc, size_t count),
    IF_SUPPORTED(set_access(addr, size, desc, count)))
API(cuMemGetAccess, (unsigned long long *out, const CUmemLocation *location, CUdeviceptr addr),
    IF_SUPPORTED(get_access(out, location, addr)))
API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *pointer),
    IF_SUPPORTED(retain(out, pointer)))
API(cuMemGetAllocationPropertiesFromHandle,
    (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle),
    IF_SUPPORTED(properties(out, handle)))
