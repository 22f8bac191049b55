/* SPDX-License-Identifier: BSD-2-Clause */
/* Attributes of pointers. */
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

static bool is_host(const struct memory *memory)
{
    return memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED;
}

static bool is_plain(const struct memory *memory)
{
    return memory->kind == MEMORY_PAGES || memory->kind == MEMORY_SMALL;
}

/* Seen: the mapping of a small block is the whole page that it is a part of. */
static struct range mapping_of(const struct memory *memory)
{
    struct range mapping = memory->range;
    if (memory->kind == MEMORY_SMALL) {
        mapping.lo -= mapping.lo % PAGE_BYTES;
        mapping.hi = mapping.lo + PAGE_BYTES;
    }
    return mapping;
}

/* The size of what an attribute writes, or 0 for one that is not simulated. */
static size_t size_of(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
#if CUDA_VERSION >= 12080
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
#endif
        return 4;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return 8;
    default:
        return 0;
    }
}

static CUresult value_of(const struct memory *memory, uint64_t addr, CUpointer_attribute attribute,
                         uint64_t *out)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *out = (uint64_t)(uintptr_t)memory->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *out = is_host(memory) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *out = addr;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(memory) && memory->kind != MEMORY_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *out = addr;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *out = memory->sync_memops;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *out = memory->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *out = memory->kind == MEMORY_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        /* Seen: memory of one device that is opened in a context of another counts as the latter's. */
        *out = (uint64_t)(memory->kind == MEMORY_IMPORTED ? memory->context->device : memory->device);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *out = is_plain(memory) && !memory->pooled && config.ipc;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *out = memory->range.lo;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *out = mapping_of(memory).lo;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *out = memory->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *out = mapping_of(memory).hi - mapping_of(memory).lo;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *out = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *out = memory->kind == MEMORY_MAPPED
                   ? (uint64_t)memory->physical->properties.requestedHandleTypes
                   : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *out = memory->kind == MEMORY_MAPPED
                   ? memory->physical->properties.allocFlags.gpuDirectRDMACapable
                   : is_plain(memory);
        break;
#if CUDA_VERSION >= 12080
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        /* Seen: plain memory says so also where there is no such engine. */
        *out = memory->kind == MEMORY_MAPPED
                   ? (memory->physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS) != 0
                   : is_plain(memory) && memory->pool == NULL;
        break;
#endif
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
        CUcontext context = thread_current();
        size_t room;
        if (context == NULL)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (is_plain(memory) && memory->pool == NULL) {
            *out = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; /* seen, also without peer access */
            break;
        }
        *out = memory_at(context, addr, true, &room) != NULL    ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               : memory_at(context, addr, false, &room) != NULL ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                                : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        break;
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *out = (uint64_t)(uintptr_t)memory->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *out = memory->physical != NULL ? memory->physical->id : memory->buffer_id;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* Asking for them sets SYNC_MEMOPS, also where that cannot be set otherwise. */
static CUresult get_tokens(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *out, struct memory *memory)
{
    if (is_host(memory))
        return CUDA_ERROR_INVALID_VALUE;
    memory->sync_memops = true;
    *out = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){.p2pToken = memory->buffer_id};
    return CUDA_SUCCESS;
}

static CUresult get(void *out, CUpointer_attribute attribute, CUdeviceptr addr)
{
    struct memory *memory = memory_asked(addr);
    uint64_t value = 0;
    if (out == NULL || memory == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        return get_tokens(out, memory);
    if (size_of(attribute) == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult rc = value_of(memory, addr, attribute, &value);
    if (rc == CUDA_SUCCESS)
        memcpy(out, &value, size_of(attribute)); /* little-endian hosts only */
    return rc;
}

/* Attributes that do not apply come back as zero, and the call succeeds: also for unknown pointers.
 */
static CUresult get_many(unsigned count, CUpointer_attribute *attributes, void **out,
                         CUdeviceptr addr)
{
    if (count == 0 || attributes == NULL || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        size_t size = size_of(attributes[i]);
        if (out[i] == NULL || size == 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (get(out[i], attributes[i], addr) == CUDA_SUCCESS)
            continue;
        memset(out[i], 0, size);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            memcpy(out[i], &(int){-2}, size);
    }
    return CUDA_SUCCESS;
}

static CUresult set(const void *value, CUpointer_attribute attribute, CUdeviceptr addr)
{
    struct memory *memory = memory_asked(addr);
    if (value == NULL || memory == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory->kind == MEMORY_MAPPED)
        return CUDA_ERROR_NOT_SUPPORTED;
    memory->sync_memops = *(const unsigned *)value != 0;
    return CUDA_SUCCESS;
}

API(cuPointerGetAttribute, (void *out, CUpointer_attribute attribute, CUdeviceptr addr),
    get(out, attribute, addr))
API(cuPointerGetAttributes,
    (unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr addr),
    get_many(count, attributes, out, addr))
API(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr addr),
    set(value, attribute, addr))
