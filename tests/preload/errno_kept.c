/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocating, launching and freeing leave errno as it was, once the first calls are done. */
#include "tests/preload/scene.h"

#include <errno.h>

int main(void)
{
    int changed = 0;
    scene_start(1, 60);
    for (int i = 0; i < 200; i++) {
        uint64_t block = 0;
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        size_t size_bytes = (size_t)(1 + i % 20) * 300 * KIB;
        errno = EXDEV;
        REQUIRE(gpu_malloc(&block, size_bytes));
        /* The driver itself may change it on a call that really reaches it. */
        changed += i >= 20 && scene_preloaded() && errno != EXDEV;
        errno = EXDEV;
        REQUIRE(gpu_fill(block, 16, 1, NULL));
        changed += i >= 20 && scene_preloaded() && scene_simulated() && errno != EXDEV;
        errno = EXDEV;
        REQUIRE(gpu_free(block));
        changed += i >= 20 && scene_preloaded() && errno != EXDEV;
        REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
    }
    printf("changed %d times\n", changed);
    return changed != 0;
}
