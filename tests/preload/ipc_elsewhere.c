/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The other process opens a block of device 0 there, and copies from it while device 1 is current: before it has
 * access as a peer, and then. (A kernel of device 1 does not reach such memory, a driver's own, in either case.)
 */
#include "tests/preload/ipc_peer.h"

#include <unistd.h>

static const uint64_t words = 300000;

struct findings {
    int move, get, enable, again, disable;
    uint32_t wrong_moved, wrong_again;
    size_t wrong_got;
};

static int import(int from, int to)
{
    static uint32_t host[300000];
    CUipcMemHandle handle;
    uint64_t block = 0;
    uint64_t own = 0;
    struct findings f = {.move = -1};
    scene_start(2, 60);
    REQUIRE(gpu_open(0));
    EXPECT(read(from, &handle, sizeof handle) == sizeof handle);
    REQUIRE(gpu_ipc_open(&block, handle));
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_malloc(&own, words * 4));
    REQUIRE(gpu_fill(own, words, 0, NULL));
    REQUIRE(gpu_sync());
    f.move = gpu_move(own, block, words * 4);
    REQUIRE(gpu_sync());
    f.wrong_moved = scene_wrong_words(own, words, 10, NULL);
    f.get = gpu_get_async(host, block, words * 4, NULL);
    REQUIRE(gpu_sync());
    for (uint64_t i = 0; i < words; i++)
        f.wrong_got += host[i] != 10;
    f.enable = gpu_peer_enable(0);
    REQUIRE(gpu_fill(own, words, 0, NULL));
    REQUIRE(gpu_sync());
    f.again = gpu_move(own, block, words * 4);
    REQUIRE(gpu_sync());
    f.wrong_again = scene_wrong_words(own, words, 10, NULL);
    f.disable = gpu_peer_disable(0);
    REQUIRE(gpu_free(own));
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_ipc_close(block));
    EXPECT(write(to, &f, sizeof f) == sizeof f);
    return 0;
}

int main(void)
{
    CUipcMemHandle handle;
    struct findings f;
    uint64_t block = 0;
    bool can = false;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(2, 60);
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can)
        scene_skip("the devices are no peers");
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 10, NULL));
    REQUIRE(gpu_sync());
    int rc = gpu_ipc_export(&handle, block);
    if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
    EXPECT(write(importer.to, &handle, sizeof handle) == sizeof handle);
    EXPECT(read(importer.from, &f, sizeof f) == sizeof f);
    int ended = ipc_peer_join(&importer);
    printf("moved %d, %u wrong; to the host %d, %zu wrong; access %d, moved %d, %u wrong; ended %d; exit %d\n", f.move,
           f.wrong_moved, f.get, f.wrong_got, f.enable, f.again, f.wrong_again, f.disable, ended);
    REQUIRE(gpu_free(block));
    return f.wrong_moved + f.wrong_again + f.wrong_got != 0;
}
