/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests to empty the cache while a capture is open, by signal and by the environment: the capture is
 * none the worse, the memory is back with the driver after it, and the graph, whose blocks live, is
 * replayed right before and after. Bare, memory went back at its free.
 */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"

#include <signal.h>

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

static uint32_t play(int mode, int how, CUstream stream, const uint64_t *block, uint64_t words,
                     struct observer *observer)
{
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t idle[IDLE];
    uint64_t inside = 0;
    uint32_t wrong = 0;
    for (int i = 0; i < IDLE; i++) {
        REQUIRE(gpu_malloc(&idle[i], 64 * MIB));
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
    REQUIRE(gpu_malloc(&inside, 4096));
    for (int i = IDLE / 2; i < IDLE; i++)
        REQUIRE(gpu_free(idle[i]));
    request(how);
    REQUIRE(gpu_free(inside));
    REQUIRE(gpu_malloc(&inside, 4096));
    REQUIRE(gpu_capture_exchange(&relaxed));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    REQUIRE(gpu_graph_launch(exec, stream));
    wrong += scene_wrong_words(block[1], words, 31, stream);
    REQUIRE(gpu_free(inside));

    /* The request waits for the capture's end; that of the environment, for the next allocation. */
    int waits = 0;
    size_t want = full + (IDLE * 64 - 32) * MIB;
    REQUIRE(gpu_malloc(&inside, 4096));
    while (observer_free_bytes(observer) < want && waits++ < 200)
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

int main(void)
{
    const uint64_t words = 16 * KIB;
    CUstream stream = NULL;
    uint64_t block[2];
    uint32_t wrong = 0;
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&stream, false));
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_malloc(&block[i], words * 4));
    REQUIRE(gpu_fill(block[0], words, 0, stream));
    REQUIRE(gpu_copy(block[1], block[0], words, stream));
    for (int mode = 0; mode < 3; mode++)
        for (int how = BY_SIGNAL; how <= BY_ENVIRONMENT; how++)
            wrong += play(mode, how, stream, block, words, &observer);
    observer_stop(&observer);
    return wrong != 0;
}
