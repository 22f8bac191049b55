/* SPDX-License-Identifier: BSD-2-Clause */
/* A block freed twice, small and large, at once and after other frees. */
#include "tests/misuse/misuse.h"

int main(void)
{
    static const size_t sizes[] = {512, 64 * KIB, 1 * MIB, 20 * MIB};
    misuse_start();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        uint64_t other = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        misuse_expect("first free", gpu_free(block), 0);
        misuse_expect("second free", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
        REQUIRE(gpu_malloc(&block, sizes[i]));
        REQUIRE(gpu_malloc(&other, sizes[i]));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_free(other));
        misuse_expect("free after both", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
    }
    return misuse_end();
}
