/* SPDX-License-Identifier: BSD-2-Clause */
/* Page-locked host memory, allocated or registered. Its device address is its host address. */
#include <sys/mman.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

static CUresult alloc(void **out, size_t size, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    REFUSE(out == NULL || (flags & ~known) != 0, INVALID_VALUE);
    TRY(capture_unsafe());
    if (size == 0) {
        *out = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t extent = round_up(size, 4096);
    void *host = mmap(NULL, extent, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REFUSE(host == MAP_FAILED, OUT_OF_MEMORY);
    struct memory *memory =
        memory_add(MEMORY_HOST, (uint64_t)(uintptr_t)host, extent, context_owner(thread_current()));
    memory->host = host;
    memory->size = size;
    *out = host;
    return CUDA_SUCCESS;
}

static CUresult free_host(void *pointer)
{
    struct memory *memory = memory_find((uint64_t)(uintptr_t)pointer);
    if (pointer == NULL || memory == NULL || memory->kind != MEMORY_HOST || memory->host != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(capture_unsafe());
    CUresult rc = context_wait_device(memory->device);
    if (rc == CUDA_SUCCESS && thread_current() != NULL)
        rc = thread_current()->error;
    memory = memory_find((uint64_t)(uintptr_t)pointer);
    if (rc != CUDA_SUCCESS || memory == NULL)
        return memory == NULL ? CUDA_ERROR_INVALID_VALUE : rc;
    memory_give_back(memory);
    return CUDA_SUCCESS;
}

static CUresult register_host(void *pointer, size_t size, unsigned flags)
{
    uint64_t addr = (uint64_t)(uintptr_t)pointer;
    REFUSE(pointer == NULL || size == 0 || addr + size < addr, INVALID_VALUE);
    struct memory *above = memory_from(addr);
    REFUSE(above != NULL && above->range.lo < addr + size, HOST_MEMORY_ALREADY_REGISTERED);
    struct memory *memory =
        memory_add(MEMORY_REGISTERED, addr, size, context_owner(thread_current()));
    memory->host = pointer;
    return CUDA_SUCCESS;
}

static CUresult unregister_host(void *pointer)
{
    struct memory *memory = memory_find((uint64_t)(uintptr_t)pointer);
    REFUSE(pointer == NULL, INVALID_VALUE);
    REFUSE(memory == NULL || memory->kind != MEMORY_REGISTERED || memory->host != pointer,
           HOST_MEMORY_NOT_REGISTERED);
    context_wait_device(memory->device); /* copies may be on their way */
    memory = memory_find((uint64_t)(uintptr_t)pointer);
    REFUSE(memory == NULL || memory->kind != MEMORY_REGISTERED, HOST_MEMORY_NOT_REGISTERED);
    memory_give_back(memory);
    return CUDA_SUCCESS;
}

API(cuMemHostAlloc, (void **out, size_t size, unsigned flags), alloc(out, size, flags))
API(cuMemAllocHost_v2, (void **out, size_t size), alloc(out, size, 0))
API(cuMemFreeHost, (void *pointer), free_host(pointer))
API(cuMemHostRegister_v2, (void *pointer, size_t size, unsigned flags),
    register_host(pointer, size, flags))
API(cuMemHostUnregister, (void *pointer), unregister_host(pointer))
