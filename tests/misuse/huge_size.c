/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocations that no device can hold, to the edge of the address space. */
#include "tests/misuse/misuse.h"

int main(void)
{
    static const size_t sizes[] = {(size_t)1 << 44, (size_t)1 << 52, (size_t)1 << 62, SIZE_MAX / 2,
                                   SIZE_MAX - 4096, SIZE_MAX - 511,  SIZE_MAX};
    misuse_start();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        misuse_expect("huge", gpu_malloc(&block, sizes[i]), CUDA_ERROR_OUT_OF_MEMORY);
        printf("untouched: %s\n", block == 0 ? "yes" : "no");
    }
    return misuse_end();
}
