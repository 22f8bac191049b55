/* SPDX-License-Identifier: BSD-2-Clause */
/* A free in a thread that has made no CUDA call and has no context: the pointer says whose it
 * is. */
#include "tests/misuse/misuse.h"

static uint64_t block;

static int free_block(int index, void *context)
{
    return gpu_free(block);
}

int main(void)
{
    static const size_t sizes[] = {512, 64 * KIB, 20 * MIB};
    misuse_start();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        REQUIRE(gpu_malloc(&block, sizes[i]));
        int rc = scene_elsewhere(free_block, NULL);
        misuse_expect("freed elsewhere", rc, 0);
        misuse_expect("and here", gpu_free(block), rc == 0 ? CUDA_ERROR_INVALID_VALUE : 0);
    }
    return misuse_end();
}
