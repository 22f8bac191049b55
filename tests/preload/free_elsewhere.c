/* SPDX-License-Identifier: BSD-2-Clause */
/* Another thread frees blocks than the one that allocated them. One such thread never touched the
 * GPU before. Others form a ring, and hand their blocks on while kernels still write them. */
#include "tests/preload/scene.h"

enum { BLOCKS = 32, THREADS = 4 };

static uint64_t blocks[THREADS][BLOCKS];

static int free_all(int index, void *context)
{
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_free(blocks[index][i]));
    return 0;
}

static int free_all_of_device(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return free_all(index, context);
}

static int fill_all(int index, void *context)
{
    CUstream *streams = context;
    REQUIRE(gpu_open(0));
    for (int i = 0; i < BLOCKS; i++) {
        size_t words = ((size_t)i + 1) * 1 * KIB;
        REQUIRE(gpu_malloc(&blocks[index][i], words * 4));
        REQUIRE(gpu_spin_fill(blocks[index][i], words, (uint32_t)i, 10000, streams[index]));
    }
    return 0;
}

static int check_next(int index, void *context)
{
    CUstream *streams = context;
    int from = (index + 1) % THREADS;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_stream_sync(streams[from]));
    for (int i = 0; i < BLOCKS; i++) {
        size_t words = ((size_t)i + 1) * 1 * KIB;
        wrong += scene_wrong_words(blocks[from][i], words, (uint32_t)i, streams[index]);
        REQUIRE(gpu_spin_fill(blocks[from][i], words, 0xbad, 10000, streams[index]));
        REQUIRE(gpu_free(blocks[from][i]));
    }
    return (int)wrong;
}

int main(void)
{
    CUstream streams[THREADS];
    int wrong = 0;
    scene_start(1, 120);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(gpu_stream_create(&streams[i], i % 2 == 0));

    fill_all(0, streams);
    /* The runtime makes a context for a new thread; with the driver API a thread has none. */
    scene_elsewhere(gpu_is_runtime ? free_all : free_all_of_device, NULL);
    printf("freed by a new thread\n");

    for (int round = 0; round < 3; round++) {
        wrong += scene_threads(THREADS, fill_all, streams);
        wrong += scene_threads(THREADS, check_next, streams);
    }
    printf("handed on: %d wrong words\n", wrong);
    REQUIRE(gpu_sync());
    return wrong != 0;
}
