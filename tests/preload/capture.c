/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures beside allocations and frees: none is spoilt that would not be natively. */
#include "tests/preload/scene.h"

/* ---- graphs of every mode replay
 * Streams are captured in every mode. Meanwhile the capturing thread and another one allocate and
 * free small blocks. Each graph is replayed afterwards, while its memory lives and other memory
 * comes and goes. Natively none of this disturbs a capture, as the modes and sizes are chosen. */

enum { SMALL_BYTES = 4096, REPLAYS = 5 };

static int churn_small(int index, void *context)
{
    const int *mode = context;
    /* A thread that means to work beside a global capture says so. */
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (*mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        REQUIRE(gpu_capture_exchange(&relaxed));
    /* With the driver API a thread has no context until it takes one. */
    REQUIRE(gpu_open(0));
    for (int i = 0; i < 20; i++) {
        uint64_t a = NEW_BLOCK(SMALL_BYTES), b = NEW_BLOCK(SMALL_BYTES / 2);
        REQUIRE(gpu_free(a));
        REQUIRE(gpu_free(b));
    }
    return 0;
}

static CUgraphExec capture_block(CUstream stream, int mode, uint64_t *block, uint64_t words,
                                 bool elsewhere)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t small = 0;
    /* Warm: the driver has its first 2 MiB of small blocks before the capture begins. */
    REQUIRE(gpu_malloc(&small, SMALL_BYTES));
    REQUIRE(gpu_capture_begin(stream, (CUstreamCaptureMode)mode));
    REQUIRE(gpu_fill(block[0], words, 11, stream));
    if (elsewhere) {
        REQUIRE(scene_elsewhere(churn_small, &mode));
    } else {
        /* Whether the driver has a small block at hand is its own affair: in a global
         * capture, say so. */
        CUstreamCaptureMode exchanged = CU_STREAM_CAPTURE_MODE_RELAXED;
        REQUIRE(gpu_capture_exchange(&exchanged));
        uint64_t inside = NEW_BLOCK(SMALL_BYTES);
        REQUIRE(gpu_free(inside));
        REQUIRE(gpu_capture_exchange(&exchanged));
    }
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_memset_async(block[2], 0x22, words * 4, stream));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    REQUIRE(gpu_graph_destroy(graph, NULL));
    REQUIRE(gpu_free(small));
    return exec;
}

static uint32_t replay(CUgraphExec exec, CUstream stream, const uint64_t *block, uint64_t words)
{
    uint32_t wrong = 0;
    for (int i = 0; i < REPLAYS; i++) {
        uint64_t other = NEW_BLOCK(words * 4);
        REQUIRE(gpu_memset_async(block[1], 0, words * 4, stream));
        REQUIRE(gpu_graph_launch(exec, stream));
        REQUIRE(gpu_fill(other, words, 99, stream));
        wrong += scene_wrong_words(block[1], words, 11, stream);
        wrong += scene_wrong_words(block[2], words, 0x22222222, stream);
        wrong += scene_wrong_words(other, words, 99, stream);
        REQUIRE(gpu_graph_launch(exec, stream));
        REQUIRE(gpu_free(other));
    }
    REQUIRE(gpu_stream_sync(stream));
    return wrong;
}

static int graphs_of_every_mode_replay(void)
{
    static const struct {
        const char *name;
        int mode;
    } modes[] = {
        {"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
        {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
        {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED},
    };
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    uint64_t block[3];
    scene_start(1, 120);
    CUstream stream = NEW_STREAM(false);
    NEW_BLOCKS(block, 3, words * 4);
    /* A real driver loads a kernel at its first launch; that is no part of a capture. */
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_stream_sync(stream));
    for (int i = 0; i < 3; i++) {
        for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
            CUgraphExec exec = capture_block(stream, modes[i].mode, block, words, elsewhere != 0);
            uint32_t here = replay(exec, stream, block, words);
            printf("%s, %s: %u wrong words\n", modes[i].name,
                   elsewhere ? "other thread" : "same thread", here);
            wrong += here;
            REQUIRE(gpu_graph_destroy(NULL, exec));
        }
    }
    FREE_ALL(block, 3);
    printf("last error %d\n", gpu_last_error());
    return wrong != 0;
}

/* ---- what spoils a capture spoils nothing else
 * A synchronisation inside a capture fails and spoils it, natively and preloaded. Once spoilt
 * captures are over, memory and later captures are as good as ever. */

static int what_spoils_a_capture_spoils_nothing_else(void)
{
    const uint64_t words = 4 * KIB;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t freed[8];
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    uint64_t block = NEW_BLOCK(words * 4);
    REQUIRE(gpu_fill(block, words, 0, stream));
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
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    NEW_BLOCKS(freed, 8, 2048);
    REQUIRE(gpu_graph_launch(exec, stream));
    printf("replayed: %u wrong words\n", scene_wrong_words(block, words, 2, stream));
    FREE_ALL(freed, 8);
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_free(block));
    return 0;
}

SCENE_ACTS(ACT(graphs_of_every_mode_replay), ACT(what_spoils_a_capture_spoils_nothing_else))
