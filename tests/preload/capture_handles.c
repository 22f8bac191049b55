/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Streams that come and go in several threads, every other one to capture on, beside a thread whose memory
 * wants fences. A driver gives the handle of a stream that was destroyed to the next one made, in whatever thread:
 * no capture may be taken for one that has ended, or it is spoilt.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>
#include <time.h>

enum { CAPTURING = 4, FOR_S = 1 };

static atomic_int capturing;

static int come_and_go(int index)
{
    int spoilt = 0;
    uint64_t block = 0;
    REQUIRE(gpu_malloc(&block, 4096));
    time_t start_s = time(NULL);
    for (int i = 0; time(NULL) - start_s <= FOR_S; i++) {
        CUstream stream = NULL;
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;
        REQUIRE(gpu_stream_create(&stream, false));
        if ((i + index) % 2) {
            REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            int filled = gpu_fill(block, 64, (uint32_t)i, stream);
            int ended = gpu_capture_end(stream, &graph);
            spoilt += filled != 0 || ended != 0;
            if (ended == 0) {
                REQUIRE(gpu_graph_instantiate(&exec, graph));
                REQUIRE(gpu_graph_destroy(graph, exec));
            }
        }
        REQUIRE(gpu_stream_destroy(stream));
    }
    REQUIRE(gpu_free(block));
    atomic_fetch_sub(&capturing, 1);
    return spoilt;
}

static int churn(void)
{
    CUstream streams[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_stream_create(&streams[i], false));
    for (uint32_t i = 0; atomic_load(&capturing) > 0; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, 64 * KIB));
        REQUIRE(gpu_fill(block, 64, i, streams[i % 2]));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_malloc(&block, 64 * KIB));
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
    (void)context;
    REQUIRE(gpu_open(0));
    return index < CAPTURING ? come_and_go(index) : churn();
}

int main(void)
{
    scene_start(1, 120);
    atomic_store(&capturing, CAPTURING);
    int spoilt = scene_threads(CAPTURING + 1, either, NULL);
    printf("%d captures spoilt, last error %d\n", spoilt, gpu_last_error());
    return spoilt != 0;
}
