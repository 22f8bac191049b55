/* SPDX-License-Identifier: BSD-2-Clause */
/* The least that every route has to serve. Blocks are allocated in a loop, written and checked by
 * kernels and copies, and freed. The program asks for memory information and for a pointer's range.
 * Played on every route. */
#include "tests/preload/scene.h"

enum { ROUNDS = 60, BLOCKS = 4, MOST_WORDS = 16 * 1024 };

/* The last words of a block, as many as are worth a look. */
static uint64_t words_of(size_t size_bytes)
{
    return size_bytes / 4 < MOST_WORDS ? size_bytes / 4 : MOST_WORDS;
}

static uint64_t tail(uint64_t block, size_t size_bytes)
{
    return block + (size_bytes / 4 - words_of(size_bytes)) * 4;
}

int main(void)
{
    static const size_t sizes[BLOCKS] = {1000, 64 * KIB, 1 * MIB, 5 * MIB + 4};
    uint32_t wrong = 0;
    scene_start(1, 120);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint64_t blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = NEW_BLOCK(sizes[i]);
            EXPECT(blocks[i] % 256 == 0);
            REQUIRE(gpu_fill(tail(blocks[i], sizes[i]), words_of(sizes[i]),
                             round * 10 + (uint32_t)i, NULL));
        }
        for (int i = 0; i < BLOCKS; i++) {
            wrong += scene_wrong_words(tail(blocks[i], sizes[i]), words_of(sizes[i]),
                                       round * 10 + (uint32_t)i, NULL);
            REQUIRE(gpu_free(blocks[i]));
        }
    }
    printf("%d rounds, %u wrong words\n", ROUNDS, wrong);

    size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
    EXPECT(free_bytes > 0 && free_bytes <= total_bytes);

    uint64_t base = 0;
    size_t size_bytes = 0;
    uint64_t block = NEW_BLOCK(3 * MIB);
    REQUIRE(gpu_address_range(&base, &size_bytes, block + MIB));
    printf("range: base %s, %zu bytes\n", base == block ? "right" : "wrong", size_bytes);
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_sync());
    printf("last error %d\n", gpu_last_error());
    return wrong != 0;
}
