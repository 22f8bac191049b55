/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that one thread freed before another's capture began, after work on two streams, is free while the
 * capture is open.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>

enum { BLOCKS = 8, FREED = 1, CAPTURING = 2, TAKEN = 3 };

static atomic_int step;

static void await(int wanted)
{
    while (atomic_load(&step) < wanted)
        scene_sleep_ms(1);
}

static int capture(void)
{
    CUstream stream = NULL;
    CUgraph graph = NULL;
    REQUIRE(gpu_stream_create(&stream, false));
    await(FREED);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    atomic_store(&step, CAPTURING);
    await(TAKEN);
    REQUIRE(gpu_capture_end(stream, &graph));
    return 0;
}

static int take(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle = 0;
    CUstream streams[2];
    uint64_t blocks[BLOCKS];
    size_t free_bytes = 0;
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_stream_create(&streams[i], false));
    REQUIRE(gpu_mem_info(&free_bytes, NULL));
    size_t most = free_bytes / 10 * 7 / (2 * MIB) * (2 * MIB);
    for (int i = 0; i < BLOCKS; i++) {
        REQUIRE(gpu_malloc(&blocks[i], most / BLOCKS));
        REQUIRE(gpu_memset_async(blocks[i], i, 64, streams[i % 2]));
    }
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_free(blocks[i]));
    atomic_store(&step, FREED);
    await(CAPTURING);
    int rc = cuMemCreate(&handle, most, &prop, 0);
    atomic_store(&step, TAKEN);
    return rc;
}

static int play(int index, void *unused)
{
    REQUIRE(gpu_open(0));
    return index == 0 ? capture() : take();
}

int main(void)
{
    scene_start(1, 60);
    int rc = scene_threads(2, play, NULL);
    printf("taken: %d\n", rc);
    return rc;
}
