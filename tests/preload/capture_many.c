/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Very many captures are open at once. After the last one memory is used again as ever.
 */
#include "tests/preload/scene.h"

enum { STREAMS = 700, TURNS = 60 };

static CUstream streams[STREAMS];

/* Each time a large part of the device, written late: it comes back only when that is known to be done. */
static int turns(void)
{
    size_t free_bytes = 0;
    int failed = 0;
    REQUIRE(gpu_mem_info(&free_bytes, NULL));
    for (uint32_t i = 0; i < TURNS; i++) {
        uint64_t block = 0;
        if (gpu_malloc(&block, free_bytes / 10) != 0) {
            failed++;
            continue;
        }
        REQUIRE(gpu_spin_fill(block, 1024, i, 10000, streams[i % 2]));
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_sync());
    return failed;
}

int main(void)
{
    scene_start(1, 60);
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(gpu_stream_create(&streams[i], false));
    printf("before: %d failed\n", turns());
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(gpu_capture_begin(streams[i], CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < STREAMS; i++) {
        CUgraph graph = NULL;
        REQUIRE(gpu_capture_end(streams[i], &graph));
        REQUIRE(cuGraphDestroy(graph));
    }
    int failed = turns();
    printf("after: %d failed\n", failed);
    return failed != 0;
}
