/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Green contexts. What is allocated while one is current is memory of the primary context, also for
 * work of the other one's streams. A block that a late writer on a green stream uses is handed out
 * again only behind that writer. The end of a green context leaves its memory alone. The end of the
 * last one ends the primary context too.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 40 };

static CUgreenCtx make_green(CUcontext *converted)
{
    CUdevResource whole;
    CUdevResource part;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    unsigned groups = 1;
    if (!scene_driver_has("cuGreenCtxCreate") ||
        cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cuDevSmResourceSplitByCount(&part, &groups, &whole, NULL, 0, 16) != CUDA_SUCCESS ||
        groups < 1)
        scene_skip("no green contexts");
    REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuCtxFromGreenCtx(converted, green));
    return green;
}

/* A block is written late by one context's stream and used again by the other one's. */
static uint32_t reuse(CUcontext first, CUstream on_first, CUcontext second, CUstream on_second)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t block = 0;
        uint64_t again = 0;
        REQUIRE(cuCtxSetCurrent(first));
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_spin_fill(block, words, 0xbad, 300000, on_first));
        REQUIRE(gpu_free(block));
        REQUIRE(cuCtxSetCurrent(second));
        REQUIRE(gpu_malloc(&again, words * 4));
        REQUIRE(gpu_fill(again, words, round, on_second));
        wrong += scene_wrong_words(again, words, round, on_second);
        if (round % 8 == 0) {
            REQUIRE(cuCtxSetCurrent(first));
            REQUIRE(gpu_sync());
            REQUIRE(cuCtxSetCurrent(second));
            wrong += scene_wrong_words(again, words, round, on_second);
        }
        REQUIRE(gpu_free(again));
    }
    return wrong;
}

static CUcontext context_of(uint64_t block)
{
    CUcontext context = NULL;
    REQUIRE(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    return context;
}

int main(void)
{
    CUcontext primary = NULL;
    CUcontext converted = NULL;
    CUcontext by_stream = NULL;
    CUstream on_green = NULL;
    CUstream on_primary = NULL;
    CUstream inside = NULL;
    uint64_t kept = 0;
    uint64_t before = 0;
    unsigned flags = 0;
    int active = -1;
    uint32_t wrong = 0;
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(gpu_malloc(&before, 1 * MIB));
    CUgreenCtx green = make_green(&converted);
    REQUIRE(cuGreenCtxStreamCreate(&on_green, green, CU_STREAM_NON_BLOCKING, 0));
    REQUIRE(gpu_stream_create(&on_primary, false));
    REQUIRE(cuStreamGetCtx(on_green, &by_stream));
    printf("the stream's context is %s\n", by_stream == converted ? "the green one" : "another");

    REQUIRE(cuCtxSetCurrent(converted));
    REQUIRE(gpu_stream_create(&inside, false));
    REQUIRE(gpu_malloc(&kept, 3 * MIB));
    printf("memory of a green context belongs to %s\n",
           context_of(kept) == primary     ? "the primary context"
           : context_of(kept) == converted ? "it"
                                           : "another");
    REQUIRE(gpu_memset(kept, 77, 3 * MIB));
    REQUIRE(gpu_sync());

    uint32_t here = reuse(converted, on_green, primary, on_primary);
    printf("green stream, then the primary's: %u wrong words\n", here);
    wrong += here;
    here = reuse(primary, on_primary, converted, on_green);
    printf("the primary's, then the green stream: %u wrong words\n", here);
    wrong += here;
    here = reuse(converted, NULL, primary, NULL);
    printf("the default streams: %u wrong words\n", here);
    wrong += here;
    here = reuse(converted, inside, converted, on_green);
    printf("two streams of the green context: %u wrong words\n", here);
    wrong += here;

    /* Freed elsewhere: green memory in the primary context, and the other way round. */
    REQUIRE(cuCtxSetCurrent(converted));
    printf("free in the green context: %d\n", gpu_free(before));
    REQUIRE(gpu_malloc(&before, 1 * MIB));
    REQUIRE(cuCtxSetCurrent(primary));
    printf("free in the primary context: %d\n", gpu_free(before));

    REQUIRE(gpu_stream_destroy(inside));
    REQUIRE(gpu_stream_destroy(on_green));
    REQUIRE(cuGreenCtxDestroy(green));
    wrong += scene_wrong_bytes(kept, 3 * MIB, 77) != 0;
    printf("after its end: free %d\n", gpu_free(kept));

    /* The last user of the primary context is a green one. */
    green = make_green(&converted);
    REQUIRE(gpu_malloc(&kept, 8 * MIB));
    REQUIRE(cuCtxSetCurrent(NULL));
    printf("release %d", (int)cuDevicePrimaryCtxRelease(0));
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf(", active %d", active);
    REQUIRE(cuGreenCtxDestroy(green));
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf(", then %d\n", active);
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    REQUIRE(gpu_malloc(&kept, 8 * MIB));
    REQUIRE(gpu_memset(kept, 5, 8 * MIB));
    wrong += scene_wrong_bytes(kept, 8 * MIB, 5) != 0;
    REQUIRE(gpu_free(kept));
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
