/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the program reads of free and total memory. Used and free add up to no more than the total.
 * Either pointer may be NULL. An allocation lowers what is free, and its free restores it.
 */
#include "tests/preload/scene.h"

int main(void)
{
    size_t before = 0;
    size_t during = 0;
    size_t after = 0;
    size_t total = 0;
    size_t total_alone = 0;
    uint64_t block = 0;
    uint64_t warm = 0;
    scene_start(1, 60);
    /* What the first allocation and copy bring along is not this scene's. */
    REQUIRE(gpu_malloc(&warm, 1 * MIB));
    REQUIRE(gpu_memset(warm, 0, 1 * MIB));
    REQUIRE(gpu_sync());

    REQUIRE(gpu_mem_info(&before, &total));
    printf("NULL free: %d\n", gpu_mem_info(NULL, &total_alone));
    printf("total is %s\n", total == total_alone ? "one" : "two");
    printf("NULL total: %d\n", gpu_mem_info(&during, NULL));
    printf("both NULL: %d\n", gpu_mem_info(NULL, NULL));
    EXPECT(before <= total);

    REQUIRE(gpu_malloc(&block, 256 * MIB));
    REQUIRE(gpu_mem_info(&during, &total));
    printf("256 MiB are %s\n", during + 256 * MIB <= before + 2 * MIB ? "missed" : "not missed");
    printf("and no more than %s\n", during + 300 * MIB >= before ? "them" : "that much");
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_mem_info(&after, &total));
    EXPECT(after <= total);
    printf("freed, they are %s\n", after + 2 * MIB >= before ? "back" : "still missed");

    for (int i = 0; i < 50; i++) {
        size_t size_bytes = ((size_t)i % 7 + 1) * 3 * MIB;
        REQUIRE(gpu_malloc(&block, size_bytes));
        REQUIRE(gpu_mem_info(&during, &total));
        EXPECT(during <= total && total - during >= size_bytes);
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_free(warm));
    return 0;
}
