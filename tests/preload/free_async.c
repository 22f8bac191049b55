/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The stream-ordered allocator beside the plain one. Its own blocks pass through. A plain block may
 * be freed in stream order, and a stream-ordered block plainly.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 30 };

int main(void)
{
    const uint64_t words = 8 * KIB;
    uint32_t wrong = 0;
    CUstream stream = NULL;
    scene_start(1, 60);
    REQUIRE(gpu_stream_create(&stream, false));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t plain = 0;
        uint64_t ordered = 0;
        uint64_t both = 0;
        REQUIRE(gpu_malloc(&plain, words * 4));
        REQUIRE(gpu_malloc_async(&ordered, words * 4, stream));
        REQUIRE(gpu_malloc_async(&both, words * 4, stream));
        REQUIRE(gpu_fill(ordered, words, round, stream));
        REQUIRE(gpu_copy(plain, ordered, words, stream));
        REQUIRE(gpu_free_async(ordered, stream));
        REQUIRE(gpu_fill(both, words, round + 1, stream));
        wrong += scene_wrong_words(plain, words, round, stream);
        wrong += scene_wrong_words(both, words, round + 1, stream);
        REQUIRE(gpu_spin_fill(plain, words, 0xbad, 10000, stream));
        REQUIRE(gpu_free_async(plain, stream));
        REQUIRE(gpu_free(both));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_stream_destroy(stream));
    printf("last error %d\n", gpu_last_error());
    return wrong != 0;
}
