/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels with leave to start early, on memory that was freed with work of the kernel before them still to come,
 * while another context of the thread, which allocates nothing, gets kernels in between: on streams of the same
 * name, default ones, those tell nothing of this context's.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 20 };
static const uint64_t words = 16 * KIB;

static void launch_beside(CUcontext context, CUstream stream)
{
    CUcontext popped = NULL;
    REQUIRE(cuCtxPushCurrent(context));
    REQUIRE(gpu_spin(1000, stream));
    REQUIRE(cuCtxPopCurrent(&popped));
}

static uint32_t reuse(CUcontext beside, CUstream stream, uint32_t round)
{
    uint64_t old = 0, block = 0, n = words;
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, MS_NS, stream));
    REQUIRE(gpu_free(old));
    launch_beside(beside, stream);
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_launch_early(GPU_FILL, stream, (void *[]){&block, &n, &round}));
    uint32_t wrong = scene_wrong_words(block, words, round, stream);
    REQUIRE(gpu_free(block));
    return wrong;
}

static void play(const char *name, CUcontext beside, CUstream stream)
{
    uint64_t scratch = 0;
    uint32_t wrong = 0;
    /* Longer than the pool takes to find that one stream is enough. */
    REQUIRE(gpu_malloc(&scratch, words * 4));
    for (uint32_t i = 0; i < 160; i++)
        REQUIRE(gpu_fill(scratch, 64, i, stream));
    REQUIRE(gpu_stream_sync(stream));
    for (uint32_t round = 0; round < ROUNDS; round++)
        wrong += reuse(beside, stream, round);
    REQUIRE(gpu_sync());
    REQUIRE(gpu_free(scratch));
    printf("%s: %u wrong words\n", name, wrong);
    EXPECT(wrong == 0);
}

int main(void)
{
    CUcontext own = NULL, beside = NULL;
    scene_start(1, 120);
    REQUIRE(cuCtxGetCurrent(&own));
    REQUIRE(cuCtxCreate(&beside, NULL, 0, 0));
    REQUIRE(cuCtxSetCurrent(own));
    play("legacy stream", beside, CU_STREAM_LEGACY);
    play("per-thread stream", beside, CU_STREAM_PER_THREAD);
    REQUIRE(cuCtxDestroy(beside));
    return 0;
}
