/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A context that is attached and detached: it lives until its last use is given up, with the memory
 * that was allocated in it, and goes with that, or with a destruction at any time; the next one
 * starts afresh.
 */
#include "tests/preload/scene.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* of cuCtxAttach and cuCtxDetach */

enum { ROUNDS = 4, USES = 3, LARGE_BYTES = 64 * MIB };

static const uint64_t words = 16 * KIB;

/* The block is used, and another one is made, used and freed. */
static uint32_t work(uint64_t block, uint32_t value)
{
    uint64_t other = 0;
    REQUIRE(gpu_malloc(&other, words * 4));
    EXPECT(other != block);
    REQUIRE(gpu_fill(other, words, value + 1, NULL));
    uint32_t wrong = scene_wrong_words(block, words, value, NULL) +
                     scene_wrong_words(other, words, value + 1, NULL);
    REQUIRE(gpu_free(other));
    return wrong;
}

static size_t free_bytes(void)
{
    size_t bytes = 0;
    REQUIRE(gpu_mem_info(&bytes, NULL));
    return bytes;
}

static uint32_t detach_each(uint32_t round)
{
    CUcontext context = NULL;
    uint64_t block = 0;
    uint64_t large = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    REQUIRE(gpu_malloc(&large, LARGE_BYTES));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, round, NULL));
    for (int i = 0; i < USES; i++) {
        CUcontext same = NULL;
        REQUIRE(cuCtxAttach(&same, 0));
        EXPECT(same == context);
    }
    uint32_t wrong = work(block, round);
    for (int i = 0; i < USES; i++) {
        int rc = (int)cuCtxDetach(context);
        REQUIRE(cuCtxSetCurrent(context));
        wrong += work(block, round);
        printf("detached %d, %u wrong; ", rc, wrong);
    }
    printf("attached in vain %d; ", (int)cuCtxAttach(&context, 1));
    wrong += work(block, round);
    printf("the last one %d, %u wrong\n", (int)cuCtxDetach(context), wrong);
    return wrong;
}

static uint32_t destroy_attached(uint32_t round)
{
    CUcontext context = NULL;
    CUcontext same = NULL;
    uint64_t block = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    REQUIRE(cuCtxAttach(&same, 0));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, round, NULL));
    uint32_t wrong = work(block, round);
    printf("destroyed %d, %u wrong\n", (int)cuCtxDestroy(context), wrong);
    return wrong;
}

int main(void)
{
    CUcontext primary = NULL;
    uint32_t wrong = 0;
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        size_t before = free_bytes();
        wrong += detach_each(10 * round);
        REQUIRE(cuCtxSetCurrent(primary));
        /* The first may leave what the driver then keeps. */
        printf("its memory is %s\n", round == 0 || free_bytes() + LARGE_BYTES / 2 >= before ? "back" : "lost");
        wrong += destroy_attached(10 * round + 5);
        REQUIRE(cuCtxSetCurrent(primary));
    }
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
