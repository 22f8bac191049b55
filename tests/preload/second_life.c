/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device is reset and used again. One stream was enough in its first life. That says nothing
 * about work of the second life, whose default stream has the same name.
 */
#include "tests/preload/scene.h"

enum { RUN = 160, BLOCKS = 600 };
#define ROOM (48 * MIB)
static const uint64_t words = 16 * KIB;

/* Long enough for the order of one stream to be found enough, work of others being complete. */
static void run(CUstream stream, bool waits)
{
    for (uint32_t i = 0; i < RUN; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, 64, i, stream));
        REQUIRE(gpu_free(block));
        if (waits && i == RUN / 2)
            REQUIRE(gpu_stream_sync(stream));
    }
}

/* Memory to spare: nothing has to wait for what was freed lately. */
static void make_room(void)
{
    uint64_t block = 0;
    REQUIRE(gpu_malloc(&block, ROOM));
    REQUIRE(gpu_free(block));
}

int main(void)
{
    static uint64_t blocks[BLOCKS];
    CUstream stream;
    uint64_t old = 0;
    uint32_t wrong = 0;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&stream, false));
    run(stream, true);
    run(CU_STREAM_LEGACY, true);
    REQUIRE(gpu_stream_destroy(stream));
    printf("reset: %d\n", gpu_reset());
    REQUIRE(gpu_open(0));

    REQUIRE(gpu_stream_create(&stream, false));
    make_room();
    for (int i = 0; i < 6; i++)
        run(stream, true);
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, 100 * MS_NS, stream));
    run(CU_STREAM_LEGACY, false);
    REQUIRE(gpu_free(old));
    for (int i = 0; i < BLOCKS; i++) {
        REQUIRE(gpu_malloc(&blocks[i], words * 4));
        REQUIRE(gpu_fill(blocks[i], words, 7, CU_STREAM_LEGACY));
    }
    REQUIRE(gpu_stream_sync(stream));
    for (int i = 0; i < BLOCKS; i++) {
        wrong += scene_wrong_words(blocks[i], words, 7, CU_STREAM_LEGACY);
        REQUIRE(gpu_free(blocks[i]));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_stream_destroy(stream));
    return wrong != 0;
}
