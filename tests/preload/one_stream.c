/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program uses one stream for a while, so that the order of that stream alone makes freed
 * memory ready. Then it uses another stream at once, while work of the first runs on memory that
 * was freed. It does so between all kinds of streams, with a stream that is destroyed before the
 * next one is made, with a graph, and with two threads whose per-thread streams differ.
 */
#include "tests/preload/scene.h"

enum { RUN = 160 };
static const uint64_t words = 16 * KIB;

/* Long enough for the order of one stream to be found enough, work of others being complete. */
static void run(CUstream stream)
{
    for (uint32_t i = 0; i < RUN; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, 64, i, stream));
        REQUIRE(gpu_free(block));
        if (i == RUN / 2)
            REQUIRE(gpu_stream_sync(stream));
    }
}

/* A block after a late writer on that stream used its memory. */
static uint64_t next_of_late_writer(CUstream from)
{
    uint64_t old = 0, block = 0;
    run(from);
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, 3 * MS_NS, from));
    REQUIRE(gpu_free(old));
    REQUIRE(gpu_malloc(&block, words * 4));
    return block;
}

/* A late writer on one stream, its block freed and taken again, the new owner's work on another. */
static uint32_t hand_over(CUstream from, CUstream to, uint32_t value)
{
    uint64_t block = next_of_late_writer(from);
    REQUIRE(gpu_fill(block, words, value, to));
    REQUIRE(gpu_stream_sync(from));
    uint32_t wrong = scene_wrong_words(block, words, value, to);
    REQUIRE(gpu_free(block));
    return wrong;
}

/* The stream is destroyed with the late writer in flight; the next may have its handle. */
static uint32_t destroy_between(bool blocking)
{
    CUstream stream;
    uint64_t old = 0, block = 0;
    REQUIRE(gpu_stream_create(&stream, blocking));
    run(stream);
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, 3 * MS_NS, stream));
    REQUIRE(gpu_free(old));
    REQUIRE(gpu_stream_destroy(stream));
    REQUIRE(gpu_stream_create(&stream, blocking));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 7, stream));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(block, words, 7, stream);
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_stream_destroy(stream));
    return wrong;
}

static uint32_t with_graph(CUstream from, CUstream to)
{
    CUgraph graph;
    CUgraphExec exec;
    uint64_t block = next_of_late_writer(from);
    REQUIRE(gpu_capture_begin(to, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(block, words, 9, to));
    REQUIRE(gpu_capture_end(to, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    REQUIRE(gpu_graph_launch(exec, to));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(block, words, 9, to);
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_free(block));
    return wrong;
}

static int other_thread(int index, void *context)
{
    uint64_t *block = context;
    (void)index;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(block, words * 4));
    REQUIRE(gpu_fill(*block, words, 11, CU_STREAM_PER_THREAD));
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    return 0;
}

static uint32_t with_thread(void)
{
    uint64_t old = 0, block = 0;
    run(CU_STREAM_PER_THREAD);
    REQUIRE(gpu_malloc(&old, words * 4));
    REQUIRE(gpu_spin_fill(old, words, 0xdead, 3 * MS_NS, CU_STREAM_PER_THREAD));
    REQUIRE(gpu_free(old));
    scene_threads(1, other_thread, &block);
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    uint32_t wrong = scene_wrong_words(block, words, 11, CU_STREAM_PER_THREAD);
    REQUIRE(gpu_free(block));
    return wrong;
}

int main(void)
{
    CUstream first, second;
    uint32_t wrong = 0;
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&first, false));
    REQUIRE(gpu_stream_create(&second, true));
    /* First, as all that follows shows that one stream is enough again after a capture. */
    uint32_t graph = with_graph(first, second);
    printf("graph: %u wrong words\n", graph);
    CUstream streams[] = {CU_STREAM_LEGACY, first, second, CU_STREAM_PER_THREAD};
    for (int i = 0; i < 4; i++) {
        uint32_t here = hand_over(streams[i], streams[(i + 1) % 4], 100 + (uint32_t)i);
        printf("hand over %d: %u wrong words\n", i, here);
        wrong += here;
    }
    uint32_t destroyed = destroy_between(false) + destroy_between(true);
    printf("destroyed: %u wrong words\n", destroyed);
    uint32_t thread = with_thread();
    printf("another thread: %u wrong words\n", thread);
    REQUIRE(gpu_stream_destroy(first));
    REQUIRE(gpu_stream_destroy(second));
    REQUIRE(gpu_sync());
    return wrong + destroyed + graph + thread != 0;
}
