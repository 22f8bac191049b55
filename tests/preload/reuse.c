/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory is freed while a late writer or reader is still at work on it. It is allocated again at
 * once and used from another stream. Nothing of the new owner may be overwritten, nothing of the
 * old one seen changed. The simulator's hazard checker watches as well.
 */
#include "tests/preload/scene.h"

enum { ROUNDS = 25, STREAMS = 5 };

static const uint64_t delay_ns = 2 * MS_NS;

/* The block that follows one of a late writer. */
static uint64_t next_of_late_writer(CUstream writer, uint64_t words)
{
    uint64_t old = 0;
    uint64_t new = 0;
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xbad, delay_ns, writer));
    REQUIRE(gpu_free(old));
    REQUIRE(gpu_malloc(&new, words * 4));
    return new;
}

/* A late writer must not reach the block's next owner. */
static uint32_t late_writer(CUstream writer, CUstream next, uint64_t words)
{
    uint64_t new = next_of_late_writer(writer, words);
    REQUIRE(gpu_fill(new, words, 7, next));
    REQUIRE(gpu_stream_sync(writer));
    uint32_t wrong = scene_wrong_words(new, words, 7, next);
    REQUIRE(gpu_free(new));
    return wrong;
}

/* A late reader must not see the next owner's data. */
static uint32_t late_reader(CUstream reader, CUstream next, uint64_t words, uint64_t errors_ptr)
{
    uint64_t old = 0;
    uint64_t new = 0;
    uint32_t errors = 0;
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_fill(old, words, 5, reader));
    REQUIRE(gpu_memset_async(errors_ptr, 0, sizeof errors, reader));
    REQUIRE(gpu_spin_check(old, words, 5, errors_ptr, delay_ns, reader));
    REQUIRE(gpu_free(old));
    REQUIRE(gpu_malloc(&new, words * 4));
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
    uint64_t new = next_of_late_writer(writer, words);
    REQUIRE(gpu_memset(new, 3, words * 4));
    REQUIRE(gpu_stream_sync(writer));
    size_t wrong = scene_wrong_bytes(new, words * 4, 3);
    REQUIRE(gpu_free(new));
    return wrong;
}

int main(void)
{
    static const uint64_t sizes[] = {512, 64 * KIB, 256 * KIB};
    CUstream streams[STREAMS] = {NULL, CU_STREAM_PER_THREAD, NULL, NULL, NULL};
    uint64_t errors_ptr = 0;
    size_t writers = 0;
    size_t readers = 0;
    size_t copies = 0;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&streams[2], true));
    REQUIRE(gpu_stream_create(&streams[3], false));
    REQUIRE(gpu_stream_create(&streams[4], false));
    REQUIRE(gpu_malloc(&errors_ptr, 4));
    for (size_t i = 0; i < ROUNDS; i++) {
        uint64_t words = sizes[i % 3] / 4;
        CUstream one = streams[i % STREAMS];
        CUstream other = streams[(i / STREAMS) % STREAMS];
        writers += late_writer(one, other, words);
        readers += late_reader(one, other, words, errors_ptr);
        copies += late_writer_copy(one, words);
    }
    printf("late writers: %zu wrong words\n", writers);
    printf("late readers: %zu wrong words\n", readers);
    printf("late writers against copies: %zu wrong bytes\n", copies);
    REQUIRE(gpu_free(errors_ptr));
    return writers + readers + copies != 0;
}
