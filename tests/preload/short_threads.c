/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Each of hundreds of short-lived threads allocates, frees half, and leaves the rest to the main
 * thread. What a thread had of its own must not be lost with it.
 */
#include "tests/preload/scene.h"

enum { WAVES = 18, THREADS = 8, BLOCKS = 6 };

static uint64_t blocks[THREADS][BLOCKS];

static int body(int index, void *context)
{
    const uint32_t *value = context;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(0));
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t words = (uint64_t)(index + 1) * (uint64_t)(i + 1) * 200;
        REQUIRE(gpu_malloc(&blocks[index][i], words * 4));
        REQUIRE(gpu_fill(blocks[index][i], words, *value + (uint32_t)i, CU_STREAM_PER_THREAD));
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        uint64_t words = (uint64_t)(index + 1) * (uint64_t)(i + 1) * 200;
        wrong +=
            scene_wrong_words(blocks[index][i], words, *value + (uint32_t)i, CU_STREAM_PER_THREAD);
        REQUIRE(gpu_free(blocks[index][i]));
    }
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    return (int)wrong;
}

int main(void)
{
    size_t before = 0;
    size_t after = 0;
    uint32_t wrong = 0;
    scene_start(1, 120);
    for (uint32_t wave = 0; wave < WAVES; wave++) {
        /* The first waves bring what threads and streams cost natively. */
        if (wave == WAVES / 3)
            REQUIRE(gpu_mem_info(&before, NULL));
        wrong += (uint32_t)scene_threads(THREADS, body, &wave);
        for (int t = 0; t < THREADS; t++) {
            for (int i = 1; i < BLOCKS; i += 2) {
                uint64_t words = (uint64_t)(t + 1) * (uint64_t)(i + 1) * 200;
                wrong += scene_wrong_words(blocks[t][i], words, wave + (uint32_t)i, NULL);
                REQUIRE(gpu_free(blocks[t][i]));
            }
        }
    }
    REQUIRE(gpu_mem_info(&after, NULL));
    printf("%u wrong words\n", wrong);
    /* A real driver keeps memory for the streams of threads that are gone. */
    if (scene_simulated())
        printf("memory %s\n", after + 32 * MIB >= before ? "kept" : "lost");
    return wrong != 0;
}
