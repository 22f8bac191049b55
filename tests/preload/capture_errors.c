/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a capture forbids: synchronising inside it fails and spoils it, natively and preloaded; and
 * once spoilt captures are over, memory and later captures are as good as ever.
 */
#include "tests/preload/scene.h"

int main(void)
{
    const uint64_t words = 4 * KIB;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t block = 0;
    uint64_t freed[8];
    scene_start(1, 60);
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 0, stream));
    REQUIRE(gpu_stream_sync(stream));

    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_fill(block, words, 1, stream));
    printf("synchronise inside: %d\n", gpu_sync());
    printf("end: %d\n", gpu_capture_end(stream, &graph));
    printf("last error %d\n", gpu_last_error());
    REQUIRE(graph != NULL ? gpu_graph_destroy(graph, NULL) : 0);

    /* Frees pile up in a relaxed capture and are used again after it. */
    for (int i = 0; i < 8; i++)
        REQUIRE(gpu_malloc(&freed[i], 2048));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(block, words, 2, stream));
    for (int i = 0; i < 8; i++)
        REQUIRE(gpu_free(freed[i]));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    for (int i = 0; i < 8; i++)
        REQUIRE(gpu_malloc(&freed[i], 2048));
    REQUIRE(gpu_graph_launch(exec, stream));
    printf("replayed: %u wrong words\n", scene_wrong_words(block, words, 2, stream));
    for (int i = 0; i < 8; i++)
        REQUIRE(gpu_free(freed[i]));
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_free(block));
    return 0;
}
