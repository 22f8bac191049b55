/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that may start before the kernels right before them end (programmatic dependent launch).
 * They use memory that was freed while such kernels still had work to do. This is tried on one
 * stream of each kind, beside another stream at work, with the old owner in another thread, and in
 * chains.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 40 };
static const uint64_t words = 16 * KIB;

static int early_fill(uint64_t ptr, uint32_t value, CUstream stream)
{
    uint64_t n = words;
    return gpu_launch_early(GPU_FILL, stream, (void *[]){&ptr, &n, &value});
}

/* Longer than the pool takes to find that one stream is enough. */
static void run(CUstream stream, uint64_t scratch)
{
    for (uint32_t i = 0; i < 160; i++)
        REQUIRE(gpu_fill(scratch, 64, i, stream));
    REQUIRE(gpu_stream_sync(stream));
}

static int write_late(int index, void *context)
{
    uint64_t old = 0;
    (void)index;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, MS_NS, *(CUstream *)context));
    REQUIRE(gpu_free(old));
    return 0;
}

/* The late writer is the kernel right before the new owner's, or others lie between, early ones
 * too. */
static uint32_t reuse(CUstream stream, uint64_t scratch, uint32_t round, bool elsewhere)
{
    uint64_t block = 0;
    if (elsewhere)
        scene_threads(1, write_late, &stream);
    else
        write_late(0, &stream);
    for (uint32_t i = 0; i < round % 4; i++)
        REQUIRE(i == 1 ? gpu_fill(scratch, 64, i, stream)
                       : early_fill(scratch + (i + 1) * words * 4, i, stream));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(early_fill(block, round, stream));
    uint32_t wrong = scene_wrong_words(block, words, round, stream);
    REQUIRE(gpu_free(block));
    return wrong;
}

static void play(const char *name, CUstream stream, CUstream beside, bool elsewhere)
{
    uint64_t scratch = 0, other = 0;
    uint32_t wrong = 0;
    REQUIRE(gpu_malloc(&scratch, 4 * words * 4));
    REQUIRE(gpu_malloc(&other, words * 4));
    run(stream, scratch);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (beside && round % 5 == 0)
            REQUIRE(gpu_fill(other, words, round, beside));
        wrong += reuse(stream, scratch, round, elsewhere);
    }
    REQUIRE(gpu_sync());
    REQUIRE(gpu_free(scratch));
    REQUIRE(gpu_free(other));
    printf("%s: %u wrong words\n", name, wrong);
    EXPECT(wrong == 0);
}

int main(void)
{
    CUstream blocking, non_blocking;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&blocking, false));
    REQUIRE(gpu_stream_create(&non_blocking, true));
    play("legacy stream", CU_STREAM_LEGACY, NULL, false);
    play("stream", blocking, NULL, false);
    play("non-blocking stream", non_blocking, NULL, false);
    play("per-thread stream", CU_STREAM_PER_THREAD, NULL, false);
    play("freed in another thread", blocking, NULL, true);
    play("with another stream", non_blocking, blocking, false);
    play("with another stream and thread", blocking, non_blocking, true);
    REQUIRE(gpu_stream_destroy(blocking));
    REQUIRE(gpu_stream_destroy(non_blocking));
    return 0;
}
