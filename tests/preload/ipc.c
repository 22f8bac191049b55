/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks handed to another process, small and large: a handle is the block's, wherever into it the
 * pointer points, and no other block's; the other process finds the bytes, writes its own, and the
 * exporter sees them and nothing else changed; opened twice it is the same address, closed as often;
 * a block that comes back at the same address has a handle of its own.
 */
#include "tests/preload/ipc_peer.h"

#include <string.h>

static struct ipc_peer importer;

/* Handles need a driver that has them; 36 is the runtime's word for a function that it lacks. */
static void export_block(CUipcMemHandle *handle, uint64_t block)
{
    int rc = gpu_ipc_export(handle, block);
    if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
}

struct block {
    uint64_t address;
    size_t size_bytes;
    CUipcMemHandle handle;
};

static void make(struct block *b, size_t size_bytes, unsigned char byte)
{
    CUipcMemHandle again;
    b->size_bytes = size_bytes;
    REQUIRE(gpu_malloc(&b->address, size_bytes));
    REQUIRE(gpu_memset(b->address, byte, size_bytes));
    REQUIRE(gpu_sync());
    memset(&b->handle, 0, sizeof b->handle);
    export_block(&b->handle, b->address);
    export_block(&again, b->address + size_bytes / 2);
    EXPECT(memcmp(&again, &b->handle, sizeof again) == 0);
}

static void share(const struct block *b, unsigned char byte)
{
    struct ipc_message m = {.handle = b->handle, .size_bytes = b->size_bytes, .byte = byte};
    struct ipc_message first = ipc_peer_do(&importer, m), second = ipc_peer_do(&importer, m);
    printf("%zu bytes: opened %d, %zu wrong; again %d, the same %d", b->size_bytes, first.rc,
           first.wrong, second.rc, first.address == second.address);
    m.address = first.address;
    m.order = IPC_RANGE;
    m.address += b->size_bytes / 2;
    struct ipc_message range = ipc_peer_do(&importer, m);
    printf("; range %d, around it %d", range.rc, range.base <= first.address &&
           first.address + b->size_bytes <= range.base + range.size_bytes);
    m.address = first.address;
    m.order = IPC_CLOSE;
    printf("; closed %d", ipc_peer_do(&importer, m).rc);
    m.order = IPC_WRITE;
    m.byte = byte + 100;
    printf(", written %d", ipc_peer_do(&importer, m).rc);
    m.order = IPC_CLOSE;
    printf(", closed %d", ipc_peer_do(&importer, m).rc);
    printf(", once too often %d\n", ipc_peer_do(&importer, m).rc);
}

/* A block that the cache puts together from the memory of many smaller ones, and a part of the last. */
static size_t share_pieces(void)
{
    enum { PIECES = 45 };
    uint64_t pieces[PIECES];
    struct block b;
    for (int i = 0; i < PIECES; i++)
        REQUIRE(gpu_malloc(&pieces[i], 2 * MIB));
    for (int i = 0; i < PIECES; i++)
        REQUIRE(gpu_free(pieces[i]));
    make(&b, PIECES * 2 * MIB - MIB, 3);
    share(&b, 3);
    size_t wrong = scene_wrong_bytes(b.address, b.size_bytes, 103);
    REQUIRE(gpu_free(b.address));
    return wrong;
}

int main(void)
{
    static const size_t sizes[] = {4 * MIB,  512,      64 * KIB, 20 * MIB, 700,
                                   2 * MIB, 300 * KIB, 3 * MIB,  34 * MIB, 33 * KIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    struct block blocks[COUNT];
    uint64_t there = 0;
    size_t wrong = 0;
    scene_watchdog(60);
    importer = ipc_peer_fork();
    scene_start(1, 60);
    int fds = ipc_count_fds();
    for (unsigned i = 0; i < COUNT; i++)
        make(&blocks[i], sizes[i], (unsigned char)(i + 1));
    for (unsigned i = 0; i < COUNT; i++)
        for (unsigned j = 0; j < i; j++)
            EXPECT(memcmp(&blocks[i].handle, &blocks[j].handle, sizeof blocks[i].handle) != 0);
    for (unsigned i = 0; i < COUNT; i++)
        share(&blocks[i], (unsigned char)(i + 1));
    for (unsigned i = 0; i < COUNT; i++)
        wrong += scene_wrong_bytes(blocks[i].address, sizes[i], (unsigned char)(i + 101));
    printf("%zu wrong bytes at the exporter\n", wrong);
    printf("in the same process: %d\n", gpu_ipc_open(&there, blocks[0].handle));
    printf("closed what was not opened: %d\n", gpu_ipc_close(blocks[0].address));
    gpu_last_error();
    for (unsigned i = 0; i < COUNT; i++) {
        struct block next;
        REQUIRE(gpu_free(blocks[i].address));
        make(&next, sizes[i], (unsigned char)(i + 11));
        /* The driver tells small allocations apart by their place alone. */
        if (scene_preloaded() || sizes[i] >= 2 * MIB)
            EXPECT(memcmp(&next.handle, &blocks[i].handle, sizeof next.handle) != 0);
        share(&next, (unsigned char)(i + 11));
        wrong += scene_wrong_bytes(next.address, sizes[i], (unsigned char)(i + 111));
        REQUIRE(gpu_free(next.address));
    }
    wrong += share_pieces();
    printf("%zu wrong bytes in all\n", wrong);
    /* The simulated driver keeps memory in files of this process. */
    EXPECT(scene_simulated() || ipc_count_fds() == fds);
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return wrong != 0;
}
