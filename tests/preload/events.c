/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A pipeline as programs write it: a producer and a consumer stream with a copy stream beside them,
 * ordered by events only. Each step has a fresh block, which is freed as soon as its last work is
 * submitted.
 */
#include "tests/preload/scene.h"

enum { STEPS = 120, DEPTH = 4 };

int main(void)
{
    const uint64_t words = 8 * KIB;
    CUstream producer = NULL;
    CUstream consumer = NULL;
    CUstream copier = NULL;
    CUevent produced = NULL;
    CUevent consumed = NULL;
    uint64_t results[STEPS / DEPTH];
    uint32_t wrong = 0;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&producer, false));
    REQUIRE(gpu_stream_create(&consumer, false));
    REQUIRE(gpu_stream_create(&copier, true));
    REQUIRE(gpu_event_create(&produced));
    REQUIRE(gpu_event_create(&consumed));
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t input = 0;
        uint64_t output = 0;
        REQUIRE(gpu_malloc(&input, words * 4));
        REQUIRE(gpu_malloc(&output, words * 4));
        REQUIRE(gpu_spin_fill(input, words, step, 20000, producer));
        REQUIRE(gpu_event_record(produced, producer));
        REQUIRE(gpu_stream_wait(consumer, produced));
        REQUIRE(gpu_copy(output, input, words, consumer));
        REQUIRE(gpu_event_record(consumed, consumer));
        REQUIRE(gpu_stream_wait(copier, consumed));
        REQUIRE(gpu_free(input));
        if (step % DEPTH == 0) {
            REQUIRE(gpu_malloc(&results[step / DEPTH], words * 4));
            REQUIRE(gpu_move_async(results[step / DEPTH], output, words * 4, copier));
        }
        REQUIRE(gpu_free(output));
    }
    REQUIRE(gpu_event_sync(consumed));
    printf("query: %d\n", gpu_event_query(consumed));
    for (uint32_t i = 0; i < STEPS / DEPTH; i++) {
        wrong += scene_wrong_words(results[i], words, i * DEPTH, copier);
        REQUIRE(gpu_free(results[i]));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_event_destroy(produced));
    REQUIRE(gpu_event_destroy(consumed));
    return wrong != 0;
}
