/* SPDX-License-Identifier: BSD-2-Clause */
/* Pinned host memory freed as device memory, and the other way round. */
#include "tests/misuse/misuse.h"

int main(void)
{
    void *host = NULL;
    uint64_t block = 0;
    misuse_start();
    REQUIRE(gpu_host_alloc(&host, 64 * KIB));
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    misuse_expect("device free of host memory", gpu_free((uint64_t)(uintptr_t)host),
                  CUDA_ERROR_INVALID_VALUE);
    misuse_expect("host free of device memory", gpu_host_free((void *)(uintptr_t)block),
                  CUDA_ERROR_INVALID_VALUE);
    misuse_expect("host free", gpu_host_free(host), 0);
    misuse_expect("device free", gpu_free(block), 0);
    return misuse_end();
}
