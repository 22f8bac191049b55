/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Several contexts of one device, made by the driver API: blocks belong to the context they were
 * allocated in, may be freed while another one is current, and go with a context that is destroyed
 * while they live; the next context starts afresh.
 */
#include "tests/preload/scene.h"

#define CONTEXTS 2

static int destroy_with_live_blocks(int round)
{
    CUcontext context = NULL;
    uint64_t live[4];
    uint64_t idle = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    for (int i = 0; i < 4; i++) {
        REQUIRE(gpu_malloc(&live[i], (size_t)(i + 1) * MIB));
        REQUIRE(gpu_memset(live[i], round, 64 * KIB));
    }
    REQUIRE(gpu_malloc(&idle, 16 * MIB));
    REQUIRE(gpu_free(idle));
    size_t wrong = scene_wrong_bytes(live[3], 64 * KIB, (unsigned char)round);
    printf("destroyed with live blocks: %d, %zu wrong bytes\n", (int)cuCtxDestroy(context), wrong);
    return (int)wrong;
}

int main(void)
{
    const uint64_t words = 32 * KIB;
    CUcontext primary = NULL;
    CUcontext context[CONTEXTS];
    uint64_t block[CONTEXTS];
    size_t before = 0;
    size_t after = 0;
    uint32_t wrong = 0;
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    for (int i = 0; i < CONTEXTS; i++) {
        REQUIRE(cuCtxCreate(&context[i], NULL, 0, 0));
        REQUIRE(gpu_malloc(&block[i], words * 4));
        REQUIRE(gpu_fill(block[i], words, 70 + (uint32_t)i, NULL));
        REQUIRE(gpu_sync());
    }
    for (int i = 0; i < CONTEXTS; i++) {
        REQUIRE(cuCtxSetCurrent(context[i]));
        wrong += scene_wrong_words(block[i], words, 70 + (uint32_t)i, NULL);
    }
    /* The second one is current: the first one's block is freed from there. */
    REQUIRE(cuCtxPushCurrent(context[0]));
    uint64_t pushed = 0;
    REQUIRE(gpu_malloc(&pushed, words * 4));
    REQUIRE(gpu_fill(pushed, words, 90, NULL));
    wrong += scene_wrong_words(pushed, words, 90, NULL);
    CUcontext popped = NULL;
    REQUIRE(cuCtxPopCurrent(&popped));
    EXPECT(popped == context[0]);
    REQUIRE(gpu_free(pushed));
    printf("free in another context: %d\n", gpu_free(block[0]));
    REQUIRE(cuCtxSetCurrent(primary));
    printf("free in the primary context: %d\n", gpu_free(block[1]));
    printf("and twice: %d\n", gpu_free(block[1]));
    REQUIRE(cuCtxSetCurrent(NULL));
    printf("without a context: %d\n", gpu_malloc(&block[0], 4096));
    for (int i = 0; i < CONTEXTS; i++)
        REQUIRE(cuCtxDestroy(context[i]));

    REQUIRE(cuCtxSetCurrent(primary));
    REQUIRE(gpu_mem_info(&before, NULL));
    for (int round = 1; round <= 3; round++) {
        wrong += (uint32_t)destroy_with_live_blocks(round);
        REQUIRE(cuCtxSetCurrent(primary));
    }
    REQUIRE(gpu_mem_info(&after, NULL));
    /* A real driver keeps some of what a context cost. */
    if (scene_simulated())
        printf("what they held is %s\n", after + 8 * MIB >= before ? "free" : "lost");
    REQUIRE(gpu_malloc(&block[0], words * 4));
    REQUIRE(gpu_fill(block[0], words, 1, NULL));
    wrong += scene_wrong_words(block[0], words, 1, NULL);
    REQUIRE(gpu_free(block[0]));
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
