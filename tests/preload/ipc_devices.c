/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The other process opens a block of device 0 while device 1 is current: device 1 reads and writes it
 * as a peer. Also with blocks of both devices open at the same time.
 */
#include "tests/preload/ipc_peer.h"

#include <unistd.h>

static const uint64_t words = 300000;

static int import(int from, int to)
{
    CUipcMemHandle handles[2];
    uint64_t blocks[2];
    uint32_t wrong = 0;
    scene_start(2, 60);
    REQUIRE(gpu_open(1));
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    for (int i = 0; i < 2; i++) {
        int device = -1;
        bool is_device = false;
        REQUIRE(gpu_ipc_open(&blocks[i], handles[i]));
        REQUIRE(gpu_pointer_is_device(&is_device, &device, blocks[i]));
        EXPECT(is_device && device == 1); /* the context's in which it was opened */
        wrong += scene_wrong_words(blocks[i], words, 10 + (uint32_t)i, NULL);
    }
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_fill(blocks[i], words, 20 + (uint32_t)i, NULL));
    REQUIRE(gpu_copy(blocks[1], blocks[0], words / 2, NULL));
    REQUIRE(gpu_sync());
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_ipc_close(blocks[i]));
    EXPECT(write(to, &wrong, sizeof wrong) == sizeof wrong);
    return 0;
}

int main(void)
{
    CUipcMemHandle handles[2];
    uint64_t blocks[2] = {0};
    uint32_t wrong = 0;
    bool can = false;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(2, 60);
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can)
        scene_skip("the devices are no peers");
    for (int i = 0; i < 2; i++) {
        REQUIRE(gpu_open(i));
        REQUIRE(gpu_malloc(&blocks[i], words * 4));
        REQUIRE(gpu_fill(blocks[i], words, 10 + (uint32_t)i, NULL));
        REQUIRE(gpu_sync());
        int rc = gpu_ipc_export(&handles[i], blocks[i]);
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
    }
    EXPECT(write(importer.to, handles, sizeof handles) == sizeof handles);
    EXPECT(read(importer.from, &wrong, sizeof wrong) == sizeof wrong);
    printf("importer: %u wrong words\n", wrong);
    int ended = ipc_peer_join(&importer);
    REQUIRE(gpu_open(0));
    wrong += scene_wrong_words(blocks[0], words, 20, NULL);
    REQUIRE(gpu_open(1));
    wrong += scene_wrong_words(blocks[1], words / 2, 20, NULL);
    wrong += scene_wrong_words(blocks[1] + words / 2 * 4, words / 2, 21, NULL);
    printf("%u wrong words, importer ended with %d\n", wrong, ended);
    return wrong != 0;
}
