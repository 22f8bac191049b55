/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many sizes, from one byte to 64 MiB: aligned as the driver aligns, no two blocks overlapping, and
 * the bytes of each its own.
 */
#include "tests/preload/scene.h"

static const size_t sizes[] = {
    1,           2,           255,      256,          257,          511,      512,
    513,         1000,        4 * KIB,  4 * KIB + 1,  64 * KIB - 1, 64 * KIB, 100000,
    512 * KIB,   1 * MIB - 1, 1 * MIB,  1 * MIB + 1,  2 * MIB - 1,  2 * MIB,  2 * MIB + 1,
    3 * MIB + 7, 8 * MIB,     20 * MIB, 20 * MIB + 5, 33 * MIB,     64 * MIB,
};
enum { SIZES = sizeof sizes / sizeof *sizes, COPIES = 2, BLOCKS = SIZES * COPIES };

static size_t overlaps(const uint64_t *blocks)
{
    size_t found = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t j = i + 1; j < BLOCKS; j++)
            found += blocks[i] < blocks[j] + sizes[j % SIZES] &&
                     blocks[j] < blocks[i] + sizes[i % SIZES];
    return found;
}

int main(void)
{
    /* Of large blocks, the first and the last bytes. */
    const size_t most = 64 * KIB;
    uint64_t blocks[BLOCKS];
    size_t misaligned = 0;
    size_t wrong = 0;
    scene_start(1, 120);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < BLOCKS; i++) {
            REQUIRE(gpu_malloc(&blocks[i], sizes[i % SIZES]));
            misaligned += blocks[i] % 512 != 0;
            size_t used = sizes[i % SIZES] < most ? sizes[i % SIZES] : most;
            REQUIRE(gpu_memset(blocks[i], (int)(i + 1), used));
            REQUIRE(gpu_memset(blocks[i] + sizes[i % SIZES] - used, (int)(i + 1), used));
        }
        size_t overlapping = overlaps(blocks);
        for (size_t i = 0; i < BLOCKS; i++) {
            size_t used = sizes[i % SIZES] < most ? sizes[i % SIZES] : most;
            wrong += scene_wrong_bytes(blocks[i], used, (unsigned char)(i + 1));
            wrong += scene_wrong_bytes(blocks[i] + sizes[i % SIZES] - used, used,
                                       (unsigned char)(i + 1));
        }
        /* Every other one first, so that neighbours meet again. */
        for (size_t i = 0; i < BLOCKS; i += 2)
            REQUIRE(gpu_free(blocks[i]));
        for (size_t i = 1; i < BLOCKS; i += 2)
            REQUIRE(gpu_free(blocks[i]));
        printf("round %d: %zu overlapping, %zu misaligned, %zu wrong bytes\n", round, overlapping,
               misaligned, wrong);
        wrong += overlapping + misaligned;
    }
    return wrong != 0;
}
