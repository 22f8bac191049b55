/* SPDX-License-Identifier: BSD-2-Clause */
/* A free of a pointer into the middle of a block; the block stays whole. */
#include "tests/misuse/misuse.h"

int main(void)
{
    static const size_t sizes[] = {1024, 64 * KIB, 3 * MIB, 20 * MIB};
    misuse_start();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        REQUIRE(gpu_memset(block, 5, sizes[i]));
        misuse_expect("one byte in", gpu_free(block + 1), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("512 bytes in", gpu_free(block + 512), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("half way", gpu_free(block + sizes[i] / 2), CUDA_ERROR_INVALID_VALUE);
        misuse_expect("last byte", gpu_free(block + sizes[i] - 1), CUDA_ERROR_INVALID_VALUE);
        printf("%zu wrong bytes\n", scene_wrong_bytes(block, sizes[i], 5));
        misuse_expect("base", gpu_free(block), 0);
    }
    return misuse_end();
}
