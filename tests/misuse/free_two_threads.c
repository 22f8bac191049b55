/* SPDX-License-Identifier: BSD-2-Clause */
/* One block freed by two threads at once: one of them is right, the other is told. */
#include "tests/misuse/misuse.h"

enum { ROUNDS = 100 };

static uint64_t block;

static int free_block(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return gpu_free(block);
}

int main(void)
{
    int right = 0;
    misuse_start();
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(gpu_malloc(&block, i % 2 == 0 ? 4 * KIB : 4 * MIB));
        int sum = scene_threads(2, free_block, NULL);
        right += sum == CUDA_SUCCESS + CUDA_ERROR_INVALID_VALUE;
    }
    printf("%d times of %d one success and one error\n", right, ROUNDS);
    EXPECT(right == ROUNDS);
    return misuse_end();
}
