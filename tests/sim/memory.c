/* SPDX-License-Identifier: BSD-2-Clause */
/* The registry of memory, and device memory of whole pages. memory_api.c exports the functions. */
#include "tests/sim/memory.h"

#include <string.h>
#include <sys/mman.h>

#include "tests/sim/hazard.h"
#include "tests/sim/mempool.h"

static struct ranges registry = {.seed = 7};
static uint64_t last_buffer_id;

#ifdef __SANITIZE_THREAD__
enum { PART_BYTES = 4096, SEEN_BYTES = 64 };

/* The thread sanitizer does not look at each word: see words.h. */
__attribute__((no_sanitize("thread"))) static void move_unseen(uint64_t *to, const uint64_t *from)
{
    for (size_t i = SEEN_BYTES / sizeof *to; i < PART_BYTES / sizeof *to; i++)
        to[i] = from[i];
}
#endif

void memory_move(void *to, const void *from, size_t size)
{
#ifdef __SANITIZE_THREAD__
    uintptr_t low = (uintptr_t)from, high = (uintptr_t)to;
    bool apart = low + size <= high || high + size <= low;
    for (; apart && (low | high) % sizeof(uint64_t) == 0 && size >= PART_BYTES;
         size -= PART_BYTES, to = (char *)to + PART_BYTES, from = (const char *)from + PART_BYTES) {
        memcpy(to, from, SEEN_BYTES);
        move_unseen(to, from);
    }
#endif
    memmove(to, from, size);
}

struct memory *memory_find(uint64_t addr)
{
    return (struct memory *)range_find(&registry, addr);
}

struct memory *memory_asked(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    bool inside = memory != NULL && !memory->freeing && addr - memory->range.lo < memory->size;
    return inside ? memory : NULL;
}

struct memory *memory_from(uint64_t addr)
{
    return (struct memory *)range_from(&registry, addr);
}

static bool accessible(const struct memory *memory, CUcontext context, bool write)
{
    if (context == NULL)
        return true;
    switch (memory->kind) {
    case MEMORY_MAPPED:
        return ((write ? memory->writable : memory->readable) >> context->device) & 1;
    case MEMORY_PAGES:
    case MEMORY_SMALL:
    case MEMORY_IMPORTED:
        if (memory->pool != NULL)
            return mempool_allows(memory->pool, context->device);
        /* Seen: peer access does not reach imported memory. The kernel ends with 700. */
        if (memory->kind == MEMORY_IMPORTED)
            return memory->device == context->device || memory->context->device == context->device;
        return memory->device == context->device || ((context->peers >> memory->device) & 1);
    case MEMORY_MANAGED:
    case MEMORY_HOST:
    case MEMORY_REGISTERED:
        break;
    }
    return true;
}

bool memory_is_for(const struct memory *memory, CUcontext context)
{
    return memory->kind != MEMORY_MAPPED || accessible(memory, context, false);
}

bool memory_covers(uint64_t addr, uint64_t size, CUcontext context)
{
    for (uint64_t at = addr; at < addr + size;) {
        struct memory *memory = memory_find(at);
        if (memory == NULL || memory->freeing || !memory_is_for(memory, context))
            return false;
        at = memory->range.hi;
    }
    return true;
}

void *memory_at(CUcontext context, uint64_t addr, bool write, size_t *room)
{
    struct memory *memory = memory_find(addr);
    *room = 0;
    if (memory == NULL || !accessible(memory, context, write))
        return NULL;
    if (memory->physical != NULL && write)
        memory->physical->touched = true;
    *room = memory->range.hi - addr;
    return memory->host + (addr - memory->range.lo);
}

struct memory *memory_add(enum memory_kind kind, uint64_t addr, uint64_t extent, CUcontext context)
{
    struct memory *memory = range_add(&registry, sizeof *memory, addr, addr + extent);
    memory->kind = kind;
    memory->size = extent;
    memory->context = context;
    memory->device = context != NULL ? context->device : 0;
    memory->buffer_id = ++last_buffer_id;
    return memory;
}

void memory_drop(struct memory *memory)
{
    hazard_forget(memory->range.lo, memory->range.hi);
    if (memory->physical != NULL)
        physical_release(memory->physical);
    range_delete(&registry, &memory->range);
}

CUresult memory_alloc(CUcontext context, uint64_t size, CUdeviceptr *out)
{
    struct memory *memory;
    REFUSE(size > ((uint64_t)1 << 46), OUT_OF_MEMORY);
    if (size < MIB) {
        memory = small_alloc(context, size);
        REFUSE(memory == NULL, OUT_OF_MEMORY);
    } else {
        uint64_t addr, extent = round_up(size, PAGE_BYTES);
        struct physical *physical = physical_create(context->device, extent, false);
        REFUSE(physical == NULL, OUT_OF_MEMORY);
        if (!address_alloc(extent, &addr)) {
            physical_release(physical);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memory = memory_add(MEMORY_PAGES, addr, extent, context);
        memory->physical = physical;
        memory->host = physical->host;
    }
    memory->size = size;
    *out = memory->range.lo;
    return CUDA_SUCCESS;
}

void memory_give_back(struct memory *memory)
{
    uint64_t addr = memory->range.lo, extent = memory->range.hi - addr, size = memory->size;
    CUmemoryPool pool = memory->pool;
    switch (memory->kind) {
    case MEMORY_SMALL:
        small_free(memory);
        break;
    case MEMORY_MANAGED:
    case MEMORY_HOST:
        munmap(memory->host, round_up(extent, 4096));
        break;
    case MEMORY_PAGES:
    case MEMORY_IMPORTED:
        address_free(addr, extent);
        break;
    case MEMORY_REGISTERED:
    case MEMORY_MAPPED:
        break;
    }
    memory_drop(memory);
    if (pool != NULL)
        mempool_gets_back(pool, size);
}

void memory_free_context(CUcontext context)
{
    for (struct memory *memory = memory_from(0), *next; memory != NULL; memory = next) {
        next = memory_from(memory->range.hi);
        if (memory->context == context)
            memory_give_back(memory);
    }
    small_free_blocks(context);
}
