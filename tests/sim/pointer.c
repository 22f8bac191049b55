/* SPDX-License-Identifier: BSD-2-Clause */
/* Attributes of pointers. */
#include <string.h>

#include "tests/sim/api.h"
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

static bool is_mapped(const struct memory *memory)
{
    return memory->kind == MEMORY_MAPPED;
}

/* Seen: the mapping of a small block is its whole page. */
static struct range mapping_of(const struct memory *memory)
{
    struct range mapping = memory->range;
    if (memory->kind == MEMORY_SMALL) {
        mapping.lo -= mapping.lo % PAGE_BYTES;
        mapping.hi = mapping.lo + PAGE_BYTES;
    }
    return mapping;
}

/* The access that the current context has. There is a current context. */
static CUmemAccess_flags access_flags(const struct memory *memory, uint64_t addr)
{
    size_t room;
    if (is_plain(memory) && memory->pool == NULL)
        return CU_MEM_ACCESS_FLAGS_PROT_READWRITE; /* seen, also without peer access */
    return memory_at(thread_current(), addr, true, &room) != NULL
               ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : memory_at(thread_current(), addr, false, &room) != NULL
               ? CU_MEM_ACCESS_FLAGS_PROT_READ
               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* Returns the size of the answer, or 0 for an attribute that is not simulated. */
static size_t size_of(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
#define POINTER(name, bytes, value)                                                                \
    case CU_POINTER_ATTRIBUTE_##name:                                                              \
        return bytes;
#include "tests/sim/pointer.def"
    default:
        return 0;
    }
}

static CUresult value_of(const struct memory *memory, uint64_t addr, CUpointer_attribute attribute,
                         uint64_t *out)
{
    const struct range mapping = mapping_of(memory);
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && !is_host(memory) &&
        memory->kind != MEMORY_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    REFUSE(attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS && thread_current() == NULL,
           INVALID_CONTEXT);
    switch ((int)attribute) {
#define PROPERTIES memory->physical->properties
#define POINTER(name, bytes, value)                                                                \
    case CU_POINTER_ATTRIBUTE_##name:                                                              \
        *out = (uint64_t)(value);                                                                  \
        break;
#include "tests/sim/pointer.def"
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* This query sets SYNC_MEMOPS, even where it cannot be set otherwise. */
static CUresult get_tokens(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *out, struct memory *memory)
{
    REFUSE(is_host(memory), INVALID_VALUE);
    memory->sync_memops = true;
    *out = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){.p2pToken = memory->buffer_id};
    return CUDA_SUCCESS;
}

static CUresult get(void *out, CUpointer_attribute attribute, CUdeviceptr addr)
{
    struct memory *memory = memory_asked(addr);
    uint64_t value = 0;
    REFUSE(out == NULL || memory == NULL, INVALID_VALUE);
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        return get_tokens(out, memory);
    REFUSE(size_of(attribute) == 0, NOT_SUPPORTED);
    CUresult rc = value_of(memory, addr, attribute, &value);
    if (rc == CUDA_SUCCESS)
        memcpy(out, &value, size_of(attribute)); /* little-endian hosts only */
    return rc;
}

/* The call succeeds even for unknown pointers. Attributes that do not apply are zero. */
static CUresult get_many(unsigned count, CUpointer_attribute *attributes, void **out,
                         CUdeviceptr addr)
{
    REFUSE(count == 0 || attributes == NULL || out == NULL, INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        size_t size = size_of(attributes[i]);
        REFUSE(out[i] == NULL || size == 0, INVALID_VALUE);
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
    REFUSE(value == NULL || memory == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
           INVALID_VALUE);
    REFUSE(is_mapped(memory), NOT_SUPPORTED);
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
