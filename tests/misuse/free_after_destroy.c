/* SPDX-License-Identifier: BSD-2-Clause */
/* Blocks of a context that was destroyed while they lived: freed, asked for, and used. */
#include "tests/misuse/misuse.h"

int main(void)
{
    CUcontext primary = NULL;
    CUcontext context = NULL;
    uint64_t small = 0;
    uint64_t large = 0;
    uint64_t base = 0;
    size_t size_bytes = 0;
    misuse_start();
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    REQUIRE(gpu_malloc(&small, 4096));
    REQUIRE(gpu_malloc(&large, 20 * MIB));
    REQUIRE(cuCtxDestroy(context));
    REQUIRE(cuCtxSetCurrent(primary));
    misuse_expect("free small", gpu_free(small), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free large", gpu_free(large), CUDA_ERROR_INVALID_VALUE);
    misuse_report("memset", gpu_memset(large, 1, 4096));
    misuse_report("range", gpu_address_range(&base, &size_bytes, large));
    return misuse_end();
}
