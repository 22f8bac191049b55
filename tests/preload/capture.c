/* SPDX-License-Identifier: BSD-2-Clause */
/* A stream capture that is spoilt, and one beside frees. capture_threads.c has those of every mode.
 */
#include "tests/preload/scene.h"

/* A synchronisation inside a capture fails and spoils it, natively and preloaded. Once spoilt
 * captures are over, memory and later captures are as good as ever. */

ACT(what_spoils_a_capture_spoils_nothing_else)
{
    const uint64_t words = 4 * KIB;
    CUgraph graph = NULL;
    uint64_t freed[8];
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    uint64_t block = NEW_FILLED(words, 0, stream);
    REQUIRE(gpu_stream_sync(stream));

    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_fill(block, words, 1, stream));
    printf("synchronise inside: %d\n", gpu_sync());
    printf("end: %d\n", gpu_capture_end(stream, &graph));
    printf("last error %d\n", gpu_last_error());
    REQUIRE(graph != NULL ? gpu_graph_destroy(graph, NULL) : 0);

    /* Frees pile up in a relaxed capture and are used again after it. */
    NEW_BLOCKS(freed, 8, 2048);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(block, words, 2, stream));
    FREE_ALL(freed, 8);
    graph = END_CAPTURE(stream);
    CUgraphExec exec = NEW_EXEC(graph);
    NEW_BLOCKS(freed, 8, 2048);
    REQUIRE(gpu_graph_launch(exec, stream));
    printf("replayed: %u wrong words\n", scene_wrong_words(block, words, 2, stream));
    return 0;
}
