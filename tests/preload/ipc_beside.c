/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that the driver serves, beside contexts that end. It may come to addresses which those had
 * a moment ago. It gets handles for other processes and takes attributes, as ever. The cache is
 * told to leave blocks above 2 MiB to the driver.
 */
#include "tests/preload/ending_contexts.h"

#include <stdatomic.h>

enum { MAKERS = 3 };

static atomic_bool all_ended;

static int share_beside(int index, void *unused)
{
    int refused = 0;
    REQUIRE(gpu_open(0));
    if (index == MAKERS) {
        end_contexts(ENDING_CONTEXTS);
        atomic_store(&all_ended, true);
        return 0;
    }
    for (int round = 0; !atomic_load(&all_ended); round++) {
        CUipcMemHandle handle;
        unsigned on = 1;
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, (size_t)(3 + (index + round) % 3) * MIB));
        if (round % 2)
            refused += cuIpcGetMemHandle(&handle, block) != CUDA_SUCCESS;
        else
            refused +=
                cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block) != CUDA_SUCCESS;
        REQUIRE(gpu_free(block));
        scene_sleep_ms(0);
    }
    return refused;
}

int main(void)
{
    contexts_end_slowly();
    scene_start(1, 60);
    printf("%d refused\n", scene_threads(MAKERS + 1, share_beside, NULL));
    return 0;
}
