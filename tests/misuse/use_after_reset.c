/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of before a reset, used, asked for and freed after it. */
#include "tests/misuse/misuse.h"

int main(void)
{
    uint64_t small = 0;
    uint64_t large = 0;
    uint64_t base = 0;
    size_t size_bytes = 0;
    misuse_start();
    REQUIRE(gpu_malloc(&small, 4096));
    REQUIRE(gpu_malloc(&large, 20 * MIB));
    REQUIRE(gpu_memset(large, 1, 20 * MIB));
    misuse_expect("reset", gpu_reset(), 0);
    REQUIRE(gpu_open(0));
    misuse_expect("free small", gpu_free(small), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free large", gpu_free(large), CUDA_ERROR_INVALID_VALUE);
    /* A real driver may put something of the new context's own there: then both succeed. */
    if (scene_simulated()) {
        misuse_report("memset", gpu_memset(large, 1, 4096));
        misuse_report("range", gpu_address_range(&base, &size_bytes, large));
    }
    return misuse_end();
}
