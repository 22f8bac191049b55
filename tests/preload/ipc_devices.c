/* SPDX-License-Identifier: BSD-2-Clause */
/* Blocks of one device, opened by a process whose other device is current. */
#include "tests/preload/ipc_peer.h"

/* The other process opens a block of device 0 while device 1 is current. Device 1 reads and writes
 * it as a peer. Also with blocks of both devices open at the same time. */

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
        REQUIRE(gpu_ipc_open(&blocks[i], handles[i]));
        EXPECT(scene_device_of(blocks[i]) == 1); /* the context's in which it was opened */
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

ACT(a_device_uses_what_it_opened_of_its_peer)
{
    CUipcMemHandle handles[2];
    uint64_t blocks[2] = {0};
    uint32_t wrong = 0;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start_peers(60);
    for (int i = 0; i < 2; i++) {
        REQUIRE(gpu_open(i));
        blocks[i] = NEW_FILLED(words, 10 + (uint32_t)i, NULL);
        REQUIRE(gpu_sync());
        ipc_export(&handles[i], blocks[i]);
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

/* The other process opens a block of device 0 there. While device 1 is current it copies from the
 * block, before it has access as a peer and after. (A kernel of device 1 does not reach such
 * memory, a driver's own, in either case.) */

struct findings {
    int move, get, enable, again, disable;
    uint32_t wrong_moved, wrong_again;
    size_t wrong_got;
};

static int import_and_copy(int from, int to)
{
    static uint32_t host[300000];
    CUipcMemHandle handle;
    uint64_t block = 0;
    struct findings f = {.move = -1};
    scene_start(2, 60);
    REQUIRE(gpu_open(0));
    EXPECT(read(from, &handle, sizeof handle) == sizeof handle);
    REQUIRE(gpu_ipc_open(&block, handle));
    REQUIRE(gpu_open(1));
    uint64_t own = NEW_FILLED(words, 0, NULL);
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

ACT(copies_reach_what_another_device_opened)
{
    CUipcMemHandle handle;
    struct findings f;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import_and_copy);
    scene_start_peers(60);
    REQUIRE(gpu_open(0));
    uint64_t block = NEW_FILLED(words, 10, NULL);
    REQUIRE(gpu_sync());
    ipc_export(&handle, block);
    EXPECT(write(importer.to, &handle, sizeof handle) == sizeof handle);
    EXPECT(read(importer.from, &f, sizeof f) == sizeof f);
    int ended = ipc_peer_join(&importer);
    printf("moved %d, %u wrong; to the host %d, %zu wrong; access %d, moved %d, %u wrong; ended "
           "%d; exit %d\n",
           f.move, f.wrong_moved, f.get, f.wrong_got, f.enable, f.again, f.wrong_again, f.disable,
           ended);
    return f.wrong_moved + f.wrong_again + f.wrong_got != 0;
}
