/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A kernel writes one word past the end of a block, with another block behind it. The caller looks
 * which tool finds the fault. The program itself always ends with 0.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <stdio.h>

/* No multiple of the rounding of blocks, behind which the next block would follow at once. */
enum { BLOCK_BYTES = 4000, BLOCKS = 8 };

int main(void)
{
    CUdeviceptr blocks[BLOCKS];
    CUfunction fill;
    CUmodule module;
    uint64_t words = BLOCK_BYTES / 4 + 1;
    uint32_t value = 7;

    driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill, module, "fill"));
    for (int i = 0; i < BLOCKS; i++)
        DRIVER_CHECK(driver.cuMemAlloc_v2(&blocks[i], BLOCK_BYTES));
    driver.cuLaunchKernel(fill, 4, 1, 1, 256, 1, 1, 0, NULL,
                          (void *[]){&blocks[BLOCKS / 2], &words, &value}, NULL);
    driver.cuCtxSynchronize();
    for (int i = 0; i < BLOCKS; i++)
        driver.cuMemFree_v2(blocks[i]);
    puts("one word past the end");
    return 0;
}
