/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that allocate and free all along, small and large, with work on streams of their own, while
 * another one captures again and again in each mode: no capture is spoilt, no graph is wrong, and no
 * block is somebody else's. A thread that works beside a global capture says so; beside the others it
 * need not; nor, with the simulated driver, if it is small blocks alone of which the driver has some at
 * hand (a real one sometimes refuses even those).
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>

enum { THREADS = 4, CAPTURES = 12 };

/* The last round: a global capture, and threads that do not say that they work beside it. */
enum { ROUNDS = 4, QUIET = 3 };

static struct {
    int round;
    CUstreamCaptureMode mode;
    atomic_bool stop;
} shared;

/* What the driver serves small blocks from, with room in it. */
static void warm(void)
{
    uint64_t block[256];
    for (int i = 0; i < 256; i++)
        REQUIRE(gpu_malloc(&block[i], 4096));
    for (int i = 1; i < 256; i++)
        REQUIRE(gpu_free(block[i]));
}

static void churn_quietly(CUstream stream)
{
    for (uint32_t i = 0; !atomic_load(&shared.stop); i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, 512 + i % 7 * 512));
        REQUIRE(gpu_fill(block, 128, i, stream));
        REQUIRE(gpu_free(block));
        if (i % 16 == 0)
            scene_sleep_ms(1);
    }
}

static int churn(int index, void *context)
{
    static const size_t sizes[] = {512, 40 * KIB, 900 * KIB, 3 * MIB, 24 * MIB};
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream = NULL;
    uint32_t wrong = 0;
    (void)context;
    if (shared.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && shared.round != QUIET)
        REQUIRE(gpu_capture_exchange(&relaxed));
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_stream_create(&stream, false));
    if (shared.round == QUIET) {
        churn_quietly(stream);
        return 0;
    }
    for (unsigned i = 0; !atomic_load(&shared.stop); i++) {
        size_t size_bytes = sizes[(i + (unsigned)index) % (sizeof sizes / sizeof *sizes)];
        uint64_t words = size_bytes / 4 < 8 * KIB ? size_bytes / 4 : 8 * KIB;
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, size_bytes));
        REQUIRE(gpu_fill(block, words, i, stream));
        if (i % 5 == 0)
            wrong += scene_wrong_words(block, words, i, stream);
        REQUIRE(gpu_free(block));
        scene_sleep_ms(1);
    }
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_stream_destroy(stream));
    return (int)wrong;
}

static int capture(int index, void *context)
{
    const uint64_t words = 16 * KIB;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream = NULL;
    uint64_t block[2];
    int failures = 0;
    (void)index;
    (void)context;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_stream_create(&stream, false));
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_malloc(&block[i], words * 4));
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_stream_sync(stream));
    for (uint32_t i = 1; i <= CAPTURES; i++) {
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;
        uint64_t inside = 0;
        REQUIRE(gpu_capture_begin(stream, shared.mode));
        REQUIRE(gpu_fill(block[0], words, i, stream));
        /* The capturing thread too allocates and frees. */
        if (shared.round != QUIET)
            REQUIRE(gpu_capture_exchange(&relaxed));
        REQUIRE(gpu_malloc(&inside, shared.round != QUIET ? (i % 4 + 1) * 3 * MIB : 4096));
        REQUIRE(gpu_free(inside));
        if (shared.round != QUIET)
            REQUIRE(gpu_capture_exchange(&relaxed));
        scene_sleep_ms(5);
        REQUIRE(gpu_copy(block[1], block[0], words, stream));
        int rc = gpu_capture_end(stream, &graph);
        if (rc != 0) {
            printf("capture %u ended with %d\n", i, rc);
            failures++;
            continue;
        }
        REQUIRE(gpu_graph_instantiate(&exec, graph));
        for (int again = 0; again < 3; again++)
            REQUIRE(gpu_graph_launch(exec, stream));
        failures += scene_wrong_words(block[1], words, i, stream) != 0;
        REQUIRE(gpu_graph_destroy(graph, exec));
    }
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_free(block[i]));
    REQUIRE(gpu_stream_destroy(stream));
    atomic_store(&shared.stop, true);
    return failures;
}

static int one(int index, void *context)
{
    return index == 0 ? capture(index, context) : churn(index, context);
}

int main(void)
{
    static const struct {
        const char *name;
        CUstreamCaptureMode mode;
    } rounds[ROUNDS] = {
        {"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
        {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
        {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED},
        {"global, quiet", CU_STREAM_CAPTURE_MODE_GLOBAL},
    };
    int failures = 0;
    scene_start(1, 120);
    warm();
    int num_rounds = scene_simulated() ? ROUNDS : QUIET;
    for (shared.round = 0; shared.round < num_rounds; shared.round++) {
        shared.mode = rounds[shared.round].mode;
        atomic_store(&shared.stop, false);
        int here = scene_threads(THREADS + 1, one, NULL);
        printf("%s: %d failures\n", rounds[shared.round].name, here);
        failures += here;
    }
    printf("last error %d\n", gpu_last_error());
    return failures;
}
