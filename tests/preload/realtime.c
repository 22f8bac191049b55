/* SPDX-License-Identifier: BSD-2-Clause */
/* Two threads with SCHED_FIFO on one processor. The one of lower priority allocates, works and
 * frees. The other wakes up in the midst of that, over and over. It captures, allocates and works
 * on a stream of its own. A wait of the second for the first that does not sleep never ends. Skips
 * where the policy is not allowed, and on a real driver, whose own waits may be such. */
#include "tests/preload/realtime.h"
#include "tests/preload/scene.h"

#include <time.h>

enum { LOW = 1, HIGH = 2, WAKES = 1500 };

static atomic_bool over;

static void *work_low(void *arg)
{
    CUstream streams[2];
    uint64_t block;
    REQUIRE(gpu_open(0));
    uint64_t own = NEW_BLOCK(KIB);
    NEW_STREAMS(streams, 2, false);
    for (unsigned i = 0; !atomic_load(&over); i++) {
        REQUIRE(gpu_malloc(&block, i % 3 ? 4 * KIB : 3 * MIB));
        REQUIRE(gpu_memset_async(block, 1, 512, streams[i % 2]));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_memset_async(own, 1, 512, streams[i / 2 % 2]));
    }
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_stream_destroy(streams[i]));
    return arg;
}

static void *work_high(void *arg)
{
    CUgraph graph;
    uint64_t block;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    for (unsigned i = 0; i < WAKES; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000 + i % 97 * 1000}, NULL);
        if (i % 2) {
            REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            REQUIRE(gpu_capture_end(stream, &graph));
            REQUIRE(gpu_graph_destroy(graph, NULL));
        } else {
            REQUIRE(gpu_malloc(&block, 4 * KIB));
            REQUIRE(gpu_memset_async(block, 2, 512, stream));
            REQUIRE(gpu_free(block));
        }
    }
    atomic_store(&over, true);
    REQUIRE(gpu_stream_destroy(stream));
    return arg;
}

int main(void)
{
    pthread_t threads[2];
    scene_start(1, 60);
    if (!scene_simulated())
        scene_skip("a driver of which it is not known how it waits");
    if (!realtime_start(&threads[0], HIGH, work_high))
        scene_skip("no real-time policy");
    EXPECT(realtime_start(&threads[1], LOW, work_low));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("both are through\n");
    return 0;
}
