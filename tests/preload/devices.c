/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two devices in one program: blocks of both at once, each used and freed while its own or the
 * other device is current; free memory is each device's own.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 12, DEVICES = 2 };

static int on_device(int index, void *context)
{
    const uint64_t words = 8 * KIB;
    uint32_t wrong = 0;
    (void)context;
    REQUIRE(gpu_open(index % DEVICES));
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t block = 0;
        bool is_device = false;
        int device = -1;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, words, (uint32_t)(index * 100 + i), NULL));
        REQUIRE(gpu_pointer_is_device(&is_device, &device, block));
        wrong += device != index % DEVICES;
        wrong += scene_wrong_words(block, words, (uint32_t)(index * 100 + i), NULL);
        REQUIRE(gpu_free(block));
    }
    return (int)wrong;
}

int main(void)
{
    const uint64_t words = 32 * KIB;
    uint64_t block[DEVICES];
    uint32_t wrong = 0;
    size_t free_bytes[DEVICES];
    size_t during = 0;
    scene_start(DEVICES, 120);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEVICES; i++) {
            REQUIRE(gpu_open(i));
            REQUIRE(gpu_malloc(&block[i], words * 4));
            REQUIRE(gpu_fill(block[i], words, (uint32_t)(round * 2 + i), NULL));
        }
        for (int i = 0; i < DEVICES; i++) {
            REQUIRE(gpu_open(i));
            wrong += scene_wrong_words(block[i], words, (uint32_t)(round * 2 + i), NULL);
        }
        for (int i = 0; i < DEVICES; i++) {
            /* Odd rounds free each block while the other device is current. */
            REQUIRE(gpu_open(round % 2 == 0 ? i : DEVICES - 1 - i));
            REQUIRE(gpu_free(block[i]));
        }
    }
    printf("in turn: %u wrong words\n", wrong);

    for (int i = 0; i < DEVICES; i++) {
        REQUIRE(gpu_open(i));
        REQUIRE(gpu_mem_info(&free_bytes[i], NULL));
    }
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&block[0], 300 * MIB));
    REQUIRE(gpu_mem_info(&during, NULL));
    printf("device 0 %s them\n", during + 300 * MIB <= free_bytes[0] + 2 * MIB ? "misses" : "has");
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_mem_info(&during, NULL));
    printf("device 1 %s them\n", during + 100 * MIB <= free_bytes[1] ? "misses" : "has");
    REQUIRE(gpu_free(block[0]));

    int threads = scene_threads(6, on_device, NULL);
    printf("in threads: %d wrong words\n", threads);
    return wrong + (uint32_t)threads != 0;
}
