/* SPDX-License-Identifier: BSD-2-Clause */
/* Another tool that is preloaded: it wraps the runtime's cudaMalloc, and cudaFree unless built
 * without, and calls what comes next (RTLD_NEXT). Before or after the cache in the list. Fails the
 * program if one calls itself. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static __thread int depth;

static void enter(void)
{
    static const char words[] = "the wrapping tool calls itself\n";
    if (++depth > 1 && write(2, words, sizeof words - 1) > 0)
        _exit(9);
}

EXPORT cudaError_t cudaMalloc(void **address, size_t size_bytes)
{
    cudaError_t (*next)(void **, size_t);
    void *symbol = dlsym(RTLD_NEXT, "cudaMalloc");
    if (symbol == NULL)
        return cudaErrorUnknown;
    memcpy(&next, &symbol, sizeof next);
    enter();
    cudaError_t rc = next(address, size_bytes);
    depth--;
    return rc;
}

#ifndef MALLOC_ONLY
EXPORT cudaError_t cudaFree(void *address)
{
    cudaError_t (*next)(void *);
    void *symbol = dlsym(RTLD_NEXT, "cudaFree");
    if (symbol == NULL)
        return cudaErrorUnknown;
    memcpy(&next, &symbol, sizeof next);
    enter();
    cudaError_t rc = next(address);
    depth--;
    return rc;
}
#endif
