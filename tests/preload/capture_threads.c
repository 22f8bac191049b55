/* SPDX-License-Identifier: BSD-2-Clause */
/* Captures in one thread beside others that allocate, free, flush and make streams. */
#include "tests/preload/observer.h"
#include "tests/preload/scene.h"

/* Threads allocate and free all along, small and large, with work on streams of their own.
 * Meanwhile another thread captures again and again in each mode. No capture is spoilt, no graph is
 * wrong, and no block is two threads' at once. A thread that works beside a global capture says so.
 * Beside the other modes it need not. With the simulated driver it need not either for small blocks
 * of which the driver has some at hand; a real driver sometimes refuses even those. */

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
    NEW_BLOCKS(block, 256, 4096);
    for (int i = 1; i < 256; i++)
        REQUIRE(gpu_free(block[i]));
}

static void churn_quietly(CUstream stream)
{
    for (uint32_t i = 0; !atomic_load(&shared.stop); i++) {
        uint64_t block = NEW_BLOCK(512 + i % 7 * 512);
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
    uint32_t wrong = 0;
    if (shared.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && shared.round != QUIET)
        REQUIRE(gpu_capture_exchange(&relaxed));
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    if (shared.round == QUIET) {
        churn_quietly(stream);
        return 0;
    }
    for (unsigned i = 0; !atomic_load(&shared.stop); i++) {
        size_t size_bytes = sizes[(i + (unsigned)index) % (sizeof sizes / sizeof *sizes)];
        uint64_t words = size_bytes / 4 < 8 * KIB ? size_bytes / 4 : 8 * KIB;
        uint64_t block = NEW_BLOCK(size_bytes);
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
    uint64_t block[2];
    int failures = 0;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    NEW_BLOCKS(block, 2, words * 4);
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_stream_sync(stream));
    for (uint32_t i = 1; i <= CAPTURES; i++) {
        CUgraph graph = NULL;
        REQUIRE(gpu_capture_begin(stream, shared.mode));
        REQUIRE(gpu_fill(block[0], words, i, stream));
        /* The capturing thread too allocates and frees. */
        if (shared.round != QUIET)
            REQUIRE(gpu_capture_exchange(&relaxed));
        TAKE_AND_GIVE(shared.round != QUIET ? (i % 4 + 1) * 3 * MIB : 4096);
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
        CUgraphExec exec = NEW_EXEC(graph);
        for (int again = 0; again < 3; again++)
            REQUIRE(gpu_graph_launch(exec, stream));
        failures += scene_wrong_words(block[1], words, i, stream) != 0;
        REQUIRE(gpu_graph_destroy(graph, exec));
    }
    FREE_ALL(block, 2);
    REQUIRE(gpu_stream_destroy(stream));
    atomic_store(&shared.stop, true);
    return failures;
}

static int one(int index, void *context)
{
    return index == 0 ? capture(index, context) : churn(index, context);
}

ACT(no_thread_spoils_anothers_capture)
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

/* Several threads make and destroy streams, and capture on every other one, beside a thread whose
 * memory wants fences. A driver gives the handle of a destroyed stream to the next stream, in
 * whatever thread. A capture on it must not be taken for one that has ended, or it is spoilt. */

enum { CAPTURING = 4, FOR_S = 1 };

static atomic_int still_capturing;

static int come_and_go(int index)
{
    int spoilt = 0;
    uint64_t block = NEW_BLOCK(4096);
    time_t start_s = time(NULL);
    for (int i = 0; time(NULL) - start_s <= FOR_S; i++) {
        CUgraph graph = NULL;
        CUstream stream = NEW_STREAM(false);
        if ((i + index) % 2) {
            REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            int filled = gpu_fill(block, 64, (uint32_t)i, stream);
            int ended = gpu_capture_end(stream, &graph);
            spoilt += filled != 0 || ended != 0;
            if (ended == 0) {
                CUgraphExec exec = NEW_EXEC(graph);
                REQUIRE(gpu_graph_destroy(graph, exec));
            }
        }
        REQUIRE(gpu_stream_destroy(stream));
    }
    REQUIRE(gpu_free(block));
    atomic_fetch_sub(&still_capturing, 1);
    return spoilt;
}

static int want_fences(void)
{
    CUstream streams[2];
    NEW_STREAMS(streams, 2, false);
    for (uint32_t i = 0; atomic_load(&still_capturing) > 0; i++) {
        uint64_t block = NEW_BLOCK(64 * KIB);
        REQUIRE(gpu_fill(block, 64, i, streams[i % 2]));
        REQUIRE(gpu_free(block));
        block = NEW_BLOCK(64 * KIB);
        REQUIRE(gpu_free(block));
    }
    for (int i = 0; i < 2; i++) {
        REQUIRE(gpu_stream_sync(streams[i]));
        REQUIRE(gpu_stream_destroy(streams[i]));
    }
    return 0;
}

static int either(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return index < CAPTURING ? come_and_go(index) : want_fences();
}

ACT(a_handle_that_comes_back_is_no_open_capture)
{
    scene_start(1, 120);
    atomic_store(&still_capturing, CAPTURING);
    int spoilt = scene_threads(CAPTURING + 1, either, NULL);
    printf("%d captures spoilt, last error %d\n", spoilt, gpu_last_error());
    return spoilt != 0;
}

/* Requests to empty the cache come by signal and by the environment while a capture is open. They
 * do not spoil the capture, and the memory is back with the driver after it. The graph, whose
 * blocks live, is replayed right before and after. Bare, memory went back at its free. */

enum { IDLE = 6, BY_SIGNAL, BY_ENVIRONMENT };

static void request(int how)
{
    if (!scene_preloaded())
        return;
    if (how == BY_SIGNAL)
        REQUIRE(raise(SIGUSR1));
    else
        REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "all", 1));
    scene_sleep_ms(30);
}

static uint32_t flush_in(int mode, int how, CUstream stream, const uint64_t *block, uint64_t words,
                         struct observer *observer)
{
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t idle[IDLE];
    uint32_t wrong = 0;
    for (int i = 0; i < IDLE; i++) {
        idle[i] = NEW_BLOCK(64 * MIB);
        REQUIRE(gpu_memset_async(idle[i], 1, 64 * KIB, stream));
    }
    REQUIRE(gpu_stream_sync(stream));
    size_t full = observer_free_bytes(observer);
    for (int i = 0; i < IDLE / 2; i++)
        REQUIRE(gpu_free(idle[i]));
    REQUIRE(gpu_capture_begin(stream, (CUstreamCaptureMode)mode));
    REQUIRE(gpu_fill(block[0], words, 31, stream));
    REQUIRE(gpu_capture_exchange(&relaxed));
    request(how);
    uint64_t inside = NEW_BLOCK(4096);
    for (int i = IDLE / 2; i < IDLE; i++)
        REQUIRE(gpu_free(idle[i]));
    request(how);
    REQUIRE(gpu_free(inside));
    inside = NEW_BLOCK(4096);
    REQUIRE(gpu_capture_exchange(&relaxed));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    CUgraph graph = END_CAPTURE(stream);
    CUgraphExec exec = NEW_EXEC(graph);
    REQUIRE(gpu_graph_launch(exec, stream));
    wrong += scene_wrong_words(block[1], words, 31, stream);
    REQUIRE(gpu_free(inside));

    /* The request waits for the capture's end; that of the environment, for the next allocation. */
    int waits = 0;
    size_t want = full + (IDLE * 64 - 32) * MIB;
    inside = NEW_BLOCK(4096);
    while (observer_free_bytes(observer) < want && waits++ < 3000)
        scene_sleep_ms(10);
    bool back = observer_free_bytes(observer) >= want;
    printf("mode %d, %s: others see it %s", mode, how == BY_SIGNAL ? "signal" : "environment",
           back ? "free" : "taken");
    REQUIRE(gpu_memset_async(block[1], 0, words * 4, stream));
    REQUIRE(gpu_graph_launch(exec, stream));
    wrong += scene_wrong_words(block[1], words, 31, stream);
    printf(", %u wrong words\n", wrong);
    REQUIRE(gpu_free(inside));
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
    return wrong + !back;
}

ACT(a_flush_waits_for_the_end_of_a_capture)
{
    const uint64_t words = 16 * KIB;
    uint64_t block[2];
    uint32_t wrong = 0;
    struct observer observer;
    observer_start(&observer);
    /* Without a page nothing but the capture's end wakes the control thread. */
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_DIR", "none", 1));
    scene_start(1, 120);
    CUstream stream = NEW_STREAM(false);
    NEW_BLOCKS(block, 2, words * 4);
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    for (int mode = 0; mode < 3; mode++)
        for (int how = BY_SIGNAL; how <= BY_ENVIRONMENT && wrong == 0; how++)
            wrong += flush_in(mode, how, stream, block, words, &observer);
    observer_stop(&observer);
    return wrong != 0;
}
