/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One after the other a program makes more contexts than a process ever has at a time. It resets
 * and destroys them, as a test runner does. Each is served as well as the first, and leaves no
 * memory.
 */
#include "tests/preload/scene.h"

/* A real driver takes its time for each. */
enum { LIVES = 200, LIVES_REAL = 6, BLOCKS = 20 };

static uint32_t live(uint32_t life)
{
    uint64_t block[BLOCKS];
    uint32_t host = 0;
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_malloc(&block[i], 4096));
    REQUIRE(gpu_put(block[BLOCKS - 1], &life, sizeof life));
    REQUIRE(gpu_get(&host, block[BLOCKS - 1], sizeof host));
    /* Some stay: they go with their context. */
    for (int i = 0; i < BLOCKS / 2; i++)
        REQUIRE(gpu_free(block[i]));
    return host != life;
}

int main(void)
{
    CUcontext context = NULL;
    size_t first_free = 0;
    size_t free_bytes = 0;
    uint32_t wrong = 0;
    scene_start(1, 120);
    wrong += live(0);
    REQUIRE(gpu_mem_info(&first_free, NULL));
    uint32_t lives = scene_simulated() ? LIVES : LIVES_REAL;
    for (uint32_t life = 1; life <= lives; life++) {
        if (life % 2) {
            REQUIRE(gpu_reset());
            REQUIRE(gpu_open(0));
            wrong += live(life);
        } else {
            REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
            wrong += live(life);
            REQUIRE(cuCtxDestroy(context));
            REQUIRE(gpu_open(0));
        }
    }
    REQUIRE(gpu_mem_info(&free_bytes, NULL));
    printf("%u wrong, and %s\n", wrong,
           free_bytes + 64 * MIB >= first_free ? "nothing is lost" : "memory is lost");
    return wrong != 0;
}
