/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocate, fill, check and free by kernels on every kind of stream: default, per-thread, blocking
 * and non-blocking, one after the other and all at once. Work is still in flight at each free.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 30, STREAMS = 6 };

static uint32_t play(CUstream stream, uint32_t seed)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t a = 0;
        uint64_t b = 0;
        REQUIRE(gpu_malloc(&a, words * 4));
        REQUIRE(gpu_malloc(&b, words * 4));
        REQUIRE(gpu_fill(a, words, seed + round, stream));
        REQUIRE(gpu_copy(b, a, words, stream));
        REQUIRE(gpu_free(a));
        wrong += scene_wrong_words(b, words, seed + round, stream);
        REQUIRE(gpu_fill(b, words, ~seed, stream));
        REQUIRE(gpu_free(b));
    }
    return wrong;
}

static uint32_t play_together(CUstream *streams)
{
    const uint64_t words = 32 * KIB;
    uint32_t wrong = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t blocks[STREAMS];
        for (uint32_t i = 0; i < STREAMS; i++) {
            REQUIRE(gpu_malloc(&blocks[i], words * 4));
            REQUIRE(gpu_spin_fill(blocks[i], words, round ^ i, 20000, streams[i]));
        }
        for (uint32_t i = 0; i < STREAMS; i++)
            wrong += scene_wrong_words(blocks[i], words, round ^ i, streams[i]);
        for (uint32_t i = 0; i < STREAMS; i++) {
            REQUIRE(gpu_spin_fill(blocks[i], words, 0xdead, 20000, streams[i]));
            REQUIRE(gpu_free(blocks[i]));
        }
    }
    return wrong;
}

int main(void)
{
    static const char *const names[STREAMS] = {
        "default", "legacy", "per-thread", "blocking", "non-blocking", "second non-blocking",
    };
    CUstream streams[STREAMS] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, NULL, NULL, NULL};
    uint32_t wrong = 0;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&streams[3], true));
    REQUIRE(gpu_stream_create(&streams[4], false));
    REQUIRE(gpu_stream_create(&streams[5], false));
    for (uint32_t i = 0; i < STREAMS; i++) {
        uint32_t here = play(streams[i], 1000 * (i + 1));
        printf("%s: %u wrong words\n", names[i], here);
        wrong += here;
    }
    uint32_t together = play_together(streams);
    printf("together: %u wrong words\n", together);
    for (int i = 3; i < STREAMS; i++)
        REQUIRE(gpu_stream_destroy(streams[i]));
    REQUIRE(gpu_sync());
    return wrong + together != 0;
}
