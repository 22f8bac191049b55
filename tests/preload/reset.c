/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cudaDeviceReset with live and with idle blocks, and a life after it: the memory is back, the old
 * pointers are dead, new ones are good.
 */
#include "tests/preload/scene.h"

int main(void)
{
    const uint64_t words = 32 * KIB;
    uint32_t wrong = 0;
    size_t first_free = 0;
    size_t total = 0;
    scene_start(1, 60);
    for (int round = 0; round < 4; round++) {
        uint64_t live[3];
        uint64_t idle = 0;
        size_t free_bytes = 0;
        REQUIRE(gpu_mem_info(&free_bytes, &total));
        if (round == 0)
            first_free = free_bytes;
        printf("round %d: %s is free\n", round,
               free_bytes + 32 * MIB >= first_free ? "all" : "less");
        for (int i = 0; i < 3; i++) {
            REQUIRE(gpu_malloc(&live[i], (uint64_t)(1 + i) * 4 * MIB));
            REQUIRE(gpu_fill(live[i], words, (uint32_t)i, NULL));
        }
        REQUIRE(gpu_malloc(&idle, 48 * MIB));
        REQUIRE(gpu_free(idle));
        for (int i = 0; i < 3; i++)
            wrong += scene_wrong_words(live[i], words, (uint32_t)i, NULL);
        printf("reset: %d\n", gpu_reset());
        REQUIRE(gpu_open(0));
        printf("free of a block of before: %d\n", gpu_free(live[0]));
        gpu_last_error();
    }
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
