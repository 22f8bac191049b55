/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory that is freed while work on it is under way, and used again at once. */
#include "tests/preload/scene.h"

/* Memory is freed while a late writer or reader is still at work on it. It is allocated again at
 * once and used from another stream. Nothing of the new owner may be overwritten, nothing of the
 * old one seen changed. The simulator's hazard checker watches as well. */

enum { REUSE_ROUNDS = 25, REUSE_STREAMS = 5 };

static const uint64_t delay_ns = 2 * MS_NS;

/* A late writer must not reach the block's next owner. */
static uint32_t late_writer(CUstream writer, CUstream next, uint64_t words)
{
    scene_free_late(words, delay_ns, writer);
    uint64_t new = NEW_FILLED(words, 7, next);
    REQUIRE(gpu_stream_sync(writer));
    uint32_t wrong = scene_wrong_words(new, words, 7, next);
    REQUIRE(gpu_free(new));
    return wrong;
}

/* A late reader must not see the next owner's data. */
static uint32_t late_reader(CUstream reader, CUstream next, uint64_t words, uint64_t errors_ptr)
{
    uint32_t errors = 0;
    uint64_t old = NEW_FILLED(words, 5, reader);
    REQUIRE(gpu_memset_async(errors_ptr, 0, sizeof errors, reader));
    REQUIRE(gpu_spin_check(old, words, 5, errors_ptr, delay_ns, reader));
    REQUIRE(gpu_free(old));
    uint64_t new = NEW_BLOCK(words * 4);
    REQUIRE(gpu_memset_async(new, 0x66, words * 4, next));
    REQUIRE(gpu_get_async(&errors, errors_ptr, sizeof errors, reader));
    REQUIRE(gpu_stream_sync(reader));
    REQUIRE(gpu_stream_sync(next));
    REQUIRE(gpu_free(new));
    return errors;
}

/* The new owner's copy from the host must not be overwritten either. */
static size_t late_writer_copy(CUstream writer, uint64_t words)
{
    scene_free_late(words, delay_ns, writer);
    uint64_t new = NEW_BLOCK(words * 4);
    REQUIRE(gpu_memset(new, 3, words * 4));
    REQUIRE(gpu_stream_sync(writer));
    size_t wrong = scene_wrong_bytes(new, words * 4, 3);
    REQUIRE(gpu_free(new));
    return wrong;
}

ACT(reuse)
{
    static const uint64_t sizes[] = {512, 64 * KIB, 256 * KIB};
    CUstream streams[REUSE_STREAMS] = {NULL, CU_STREAM_PER_THREAD, NULL, NULL, NULL};
    size_t writers = 0, readers = 0, copies = 0;
    scene_start(1, 120);
    streams[2] = NEW_STREAM(true);
    streams[3] = NEW_STREAM(false);
    streams[4] = NEW_STREAM(false);
    uint64_t errors_ptr = NEW_BLOCK(4);
    for (size_t i = 0; i < REUSE_ROUNDS; i++) {
        uint64_t words = sizes[i % 3] / 4;
        CUstream one = streams[i % REUSE_STREAMS];
        CUstream other = streams[(i / REUSE_STREAMS) % REUSE_STREAMS];
        writers += late_writer(one, other, words);
        readers += late_reader(one, other, words, errors_ptr);
        copies += late_writer_copy(one, words);
    }
    printf("late writers: %zu wrong words\n", writers);
    printf("late readers: %zu wrong words\n", readers);
    printf("late writers against copies: %zu wrong bytes\n", copies);
    return writers + readers + copies != 0;
}

/* A persistent kernel runs on a non-blocking stream until the host raises a flag, while the
 * program allocates, uses and frees other memory. Natively a free would wait for it, so memory
 * freed before the kernel started is what comes back: nothing here may wait for the kernel. */

enum { BLOCKS = 20 };

ACT(persistent)
{
    const uint64_t words = 32 * KIB;
    uint64_t blocks[BLOCKS], again[BLOCKS];
    uint32_t wrong = 0;
    scene_start(1, 60);
    CUstream forever = NEW_STREAM(false), stream = NEW_STREAM(false);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = NEW_FILLED(words, (uint32_t)i, stream);
    for (int i = 0; i < BLOCKS; i++) {
        wrong += scene_wrong_words(blocks[i], words, (uint32_t)i, stream);
        /* Every other one is freed under a writer that ends by itself. */
        if (i % 2 == 0)
            REQUIRE(gpu_spin_fill(blocks[i], words, 0xbad, 100000, stream));
        REQUIRE(gpu_free(blocks[i]));
    }

    uint32_t *held = scene_hold(forever);
    for (int i = 0; i < BLOCKS; i++)
        again[i] = NEW_FILLED(words, 100 + (uint32_t)i, stream);
    uint64_t pitched = 0;
    size_t pitch_bytes = 0;
    REQUIRE(gpu_malloc_pitch(&pitched, &pitch_bytes, 100, 10));
    REQUIRE(gpu_memset_async(pitched, 1, pitch_bytes * 10, stream));
    REQUIRE(gpu_stream_sync(stream));
    printf("running: %s\n",
           gpu_stream_query(forever) == CUDA_ERROR_NOT_READY ? "still" : "no more");
    scene_let_go(held);
    REQUIRE(gpu_stream_sync(forever));
    gpu_last_error();
    REQUIRE(gpu_free(pitched));

    for (int i = 0; i < BLOCKS; i++) {
        wrong += scene_wrong_words(again[i], words, 100 + (uint32_t)i, stream);
        REQUIRE(gpu_free(again[i]));
    }
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}

/* Kernels that may start before the kernels right before them end (programmatic dependent launch).
 * They use memory that was freed while such kernels still had work to do. This is tried on one
 * stream of each kind, beside another stream at work, with the old owner in another thread, and in
 * chains. */

enum { EARLY_ROUNDS = 40 };
static const uint64_t early_words = 16 * KIB;

static int early_fill(uint64_t ptr, uint32_t value, CUstream stream)
{
    uint64_t n = early_words;
    return gpu_launch_early(GPU_FILL, stream, (void *[]){&ptr, &n, &value});
}

static int write_late(int index, void *context)
{
    REQUIRE(gpu_open(0));
    scene_free_late(early_words, MS_NS, *(CUstream *)context);
    return 0;
}

/* The late writer is the kernel right before the new owner's, or others lie between, early ones
 * too. */
static uint32_t use_again(CUstream stream, uint64_t scratch, uint32_t round, bool elsewhere)
{
    if (elsewhere)
        scene_threads(1, write_late, &stream);
    else
        write_late(0, &stream);
    for (uint32_t i = 0; i < round % 4; i++)
        REQUIRE(i == 1 ? gpu_fill(scratch, 64, i, stream)
                       : early_fill(scratch + (i + 1) * early_words * 4, i, stream));
    uint64_t block = NEW_BLOCK(early_words * 4);
    REQUIRE(early_fill(block, round, stream));
    uint32_t wrong = scene_wrong_words(block, early_words, round, stream);
    REQUIRE(gpu_free(block));
    return wrong;
}

static void play_early(const char *name, CUstream stream, CUstream beside, bool elsewhere)
{
    uint32_t wrong = 0;
    uint64_t scratch = NEW_BLOCK(4 * early_words * 4), other = NEW_BLOCK(early_words * 4);
    scene_run_alone(stream, true);
    REQUIRE(gpu_stream_sync(stream));
    for (uint32_t round = 0; round < EARLY_ROUNDS; round++) {
        if (beside && round % 5 == 0)
            REQUIRE(gpu_fill(other, early_words, round, beside));
        wrong += use_again(stream, scratch, round, elsewhere);
    }
    REQUIRE(gpu_sync());
    REQUIRE(gpu_free(scratch));
    REQUIRE(gpu_free(other));
    printf("%s: %u wrong early_words\n", name, wrong);
    EXPECT(wrong == 0);
}

ACT(early_launch)
{
    scene_start(1, 120);
    CUstream blocking = NEW_STREAM(false), non_blocking = NEW_STREAM(true);
    play_early("legacy stream", CU_STREAM_LEGACY, NULL, false);
    play_early("stream", blocking, NULL, false);
    play_early("non-blocking stream", non_blocking, NULL, false);
    play_early("per-thread stream", CU_STREAM_PER_THREAD, NULL, false);
    play_early("freed in another thread", blocking, NULL, true);
    play_early("with another stream", non_blocking, blocking, false);
    play_early("with another stream and thread", blocking, non_blocking, true);
    return 0;
}
