/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A persistent kernel runs on a non-blocking stream until the host raises a flag, while the program
 * allocates, uses and frees other memory. Natively a free would wait for it, so memory freed before
 * the kernel started is what comes back: nothing here may wait for the kernel.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 20 };

int main(void)
{
    const uint64_t words = 32 * KIB;
    void *flag = NULL;
    CUstream forever = NULL;
    CUstream stream = NULL;
    uint64_t blocks[ROUNDS];
    uint64_t again[ROUNDS];
    uint32_t wrong = 0;
    scene_start(1, 40);
    REQUIRE(gpu_stream_create(&forever, false));
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_host_alloc(&flag, 4));
    __atomic_store_n((uint32_t *)flag, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(gpu_malloc(&blocks[i], words * 4));
        REQUIRE(gpu_fill(blocks[i], words, (uint32_t)i, stream));
    }
    for (int i = 0; i < ROUNDS; i++) {
        wrong += scene_wrong_words(blocks[i], words, (uint32_t)i, stream);
        /* Every other one is freed under a writer that ends by itself. */
        if (i % 2 == 0)
            REQUIRE(gpu_spin_fill(blocks[i], words, 0xbad, 100000, stream));
        REQUIRE(gpu_free(blocks[i]));
    }

    REQUIRE(gpu_wait_flag((uint64_t)(uintptr_t)flag, forever));
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(gpu_malloc(&again[i], words * 4));
        REQUIRE(gpu_fill(again[i], words, 100 + (uint32_t)i, stream));
    }
    uint64_t pitched = 0;
    size_t pitch_bytes = 0;
    REQUIRE(gpu_malloc_pitch(&pitched, &pitch_bytes, 100, 10));
    REQUIRE(gpu_memset_async(pitched, 1, pitch_bytes * 10, stream));
    REQUIRE(gpu_stream_sync(stream));
    printf("running: %s\n",
           gpu_stream_query(forever) == CUDA_ERROR_NOT_READY ? "still" : "no more");
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_RELEASE);
    REQUIRE(gpu_stream_sync(forever));
    gpu_last_error();
    REQUIRE(gpu_free(pitched));

    for (int i = 0; i < ROUNDS; i++) {
        wrong += scene_wrong_words(again[i], words, 100 + (uint32_t)i, stream);
        REQUIRE(gpu_free(again[i]));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_host_free(flag));
    return wrong != 0;
}
