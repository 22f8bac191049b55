/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A kernel has broken one thread's context, and that thread asks about it again and again, while another thread
 * makes, uses and destroys contexts of its own: those work.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>

/* A real driver takes its time for each. */
enum { CONTEXTS = 500, CONTEXTS_REAL = 20, BLOCKS = 4 };
static const uint64_t nowhere = 0x1000;

static atomic_bool broken, over;

static int break_own(void)
{
    CUcontext own = NULL;
    CUstream stream = NULL;
    uint64_t block = 0;
    int others = 0;
    REQUIRE(cuCtxCreate(&own, NULL, 0, 0));
    REQUIRE(gpu_malloc(&block, 512));
    REQUIRE(gpu_stream_create(&stream, true));
    REQUIRE(gpu_fill(nowhere, 1024, 1, stream));
    others += gpu_sync() != CUDA_ERROR_ILLEGAL_ADDRESS;
    atomic_store(&broken, true);
    while (!atomic_load(&over))
        others += gpu_sync() != CUDA_ERROR_ILLEGAL_ADDRESS;
    return others;
}

static int use_others(void)
{
    int failed = 0;
    while (!atomic_load(&broken))
        scene_sleep_ms(1);
    int contexts = scene_simulated() ? CONTEXTS : CONTEXTS_REAL;
    for (int i = 0; i < contexts; i++) {
        CUcontext own = NULL;
        uint64_t blocks[BLOCKS] = {0};
        REQUIRE(cuCtxCreate(&own, NULL, 0, 0));
        for (int j = 0; j < BLOCKS; j++)
            failed += gpu_malloc(&blocks[j], 4 * KIB << (4 * j)) != 0 || gpu_memset(blocks[j], i, 64) != 0;
        for (int j = 0; j < BLOCKS; j++)
            failed += gpu_free(blocks[j]) != 0;
        failed += gpu_malloc(&blocks[0], 4 * KIB) != 0;
        REQUIRE(cuCtxDestroy(own));
    }
    atomic_store(&over, true);
    return failed;
}

static int play(int index, void *unused)
{
    return index == 0 ? break_own() : use_others();
}

int main(void)
{
    scene_start(1, 120);
    int failed = scene_threads(2, play, NULL);
    printf("%d failed\n", failed);
    return failed != 0;
}
