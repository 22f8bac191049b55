/* SPDX-License-Identifier: BSD-2-Clause */
/* Captures beyond the beginning and end of one stream: forked over an event, into an existing
 * graph, or with a graph as a node of another one. Where the driver has conditional nodes, the body
 * of one too. And captures that end without cuStreamEndCapture: the stream is destroyed, or the
 * context reset. After each of them freed memory is used again, which the library does only if it
 * knows of no open capture. */
#include "tests/preload/conditional.h"

static const uint64_t words = 16 * KIB;

/* A stream's worth of blocks that come and go, always with work behind them. */
static uint32_t go_on(CUstream stream)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 40; i++) {
        uint64_t block = NEW_BLOCK(8 * MIB);
        REQUIRE(gpu_fill(block, words, i, stream));
        if (i % 8 == 0)
            wrong += scene_wrong_words(block, words, i, stream);
        REQUIRE(gpu_free(block));
    }
    return wrong;
}

static void churn_inside(void)
{
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t block[3];
    REQUIRE(gpu_capture_exchange(&relaxed));
    for (int i = 0; i < 3; i++)
        block[i] = NEW_BLOCK((size_t)(i + 1) * 4 * MIB);
    FREE_ALL(block, 3);
    REQUIRE(gpu_capture_exchange(&relaxed));
}

static uint32_t replay(const char *what, CUgraph graph, CUstream stream, uint64_t block,
                       uint32_t value)
{
    uint32_t wrong = 0;
    CUgraphExec exec = NEW_EXEC(graph);
    for (int i = 0; i < 3; i++) {
        REQUIRE(gpu_memset_async(block, 0, words * 4, stream));
        REQUIRE(gpu_graph_launch(exec, stream));
        wrong += scene_wrong_words(block, words, value, stream);
    }
    REQUIRE(gpu_graph_destroy(NULL, exec));
    wrong += go_on(stream);
    printf("%s: %u wrong words\n", what, wrong);
    return wrong;
}

static CUgraph fork_and_join(CUstream stream, CUstream other, const uint64_t *block)
{
    CUevent fork = NULL, join = NULL;
    REQUIRE(gpu_event_create(&fork));
    REQUIRE(gpu_event_create(&join));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_fill(block[0], words, 5, stream));
    REQUIRE(gpu_event_record(fork, stream));
    REQUIRE(gpu_stream_wait(other, fork));
    churn_inside();
    REQUIRE(gpu_copy(block[1], block[0], words, other));
    REQUIRE(gpu_event_record(join, other));
    REQUIRE(gpu_stream_wait(stream, join));
    REQUIRE(gpu_copy(block[2], block[1], words, stream));
    CUgraph graph = END_CAPTURE(stream);
    REQUIRE(gpu_event_destroy(fork));
    REQUIRE(gpu_event_destroy(join));
    return graph;
}

/* The second capture goes on behind what the first one left. */
static CUgraph capture_twice_into(CUstream stream, const uint64_t *block)
{
    CUgraph graph = NULL;
    CUgraphNode nodes[8];
    size_t count = 0;
    REQUIRE(cuGraphCreate(&graph, 0));
    REQUIRE(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
                                        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    REQUIRE(gpu_fill(block[0], words, 6, stream));
    churn_inside();
    graph = END_CAPTURE(stream);
    count = sizeof nodes / sizeof *nodes;
    REQUIRE(cuGraphGetNodes(graph, nodes, &count));
    REQUIRE(cuStreamBeginCaptureToGraph(stream, graph, nodes, NULL, count,
                                        CU_STREAM_CAPTURE_MODE_RELAXED));
    churn_inside();
    REQUIRE(gpu_copy(block[2], block[0], words, stream));
    graph = END_CAPTURE(stream);
    return graph;
}

/* A body that runs because its condition starts out true; -1: the driver has no such nodes. */
static int conditional(CUgraph *graph, CUstream stream, const uint64_t *block)
{
    REQUIRE(cuGraphCreate(graph, 0));
    CUgraph body = add_conditional(*graph);
    if (body == NULL)
        return gpu_graph_destroy(*graph, NULL) ? 1 : -1;
    REQUIRE(
        cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_fill(block[2], words, 8, stream));
    churn_inside();
    return gpu_capture_end(stream, &body);
}

static uint32_t ends_that_are_none(void)
{
    uint32_t wrong = 0;
    CUstream stream = NEW_STREAM(false), dying = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(dying, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    printf("destroyed while capturing: %d\n", gpu_stream_destroy(dying));
    wrong += go_on(stream);
    dying = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(dying, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("reset while capturing: %d\n", gpu_reset());
    REQUIRE(gpu_open(0));
    stream = NEW_STREAM(false);
    return wrong + go_on(stream);
}

int main(void)
{
    CUgraph graph = NULL, parent = NULL;
    CUgraphNode node = NULL;
    uint64_t block[3];
    uint32_t wrong = 0;
    scene_start(1, 120);
    CUstream stream = NEW_STREAM(false), other = NEW_STREAM(false);
    NEW_BLOCKS(block, 3, words * 4);
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_stream_sync(stream));

    graph = fork_and_join(stream, other, block);
    wrong += replay("forked", graph, stream, block[2], 5);
    REQUIRE(cuGraphCreate(&parent, 0));
    REQUIRE(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    wrong += replay("child graph", parent, stream, block[2], 5);
    REQUIRE(gpu_graph_destroy(parent, NULL));
    REQUIRE(gpu_graph_destroy(graph, NULL));

    graph = capture_twice_into(stream, block);
    wrong += replay("into a graph", graph, stream, block[2], 6);
    REQUIRE(gpu_graph_destroy(graph, NULL));

    int rc = conditional(&graph, stream, block);
    if (rc == 0) {
        wrong += replay("conditional node", graph, stream, block[2], 8);
        REQUIRE(gpu_graph_destroy(graph, NULL));
    } else {
        printf("conditional node: %d\n", rc);
    }
    wrong += ends_that_are_none();
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
