/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Several processes open blocks of one exporter at the same time, each with several threads, while the
 * exporter's threads allocate, free, flush their caches and share anew: every handle shows its own
 * block, or nothing once the block is gone.
 */
#include "tests/preload/ipc_peer.h"

#include <stdatomic.h>
#include <string.h>

enum { PEERS = 3, ROUNDS = 12, WORKERS = 2 };

static struct ipc_peer peers[PEERS];
static atomic_bool stop;

/* What shares no memory makes it move and go. */
static int churn(int index, void *unused)
{
    uint64_t blocks[24] = {0};
    uint64_t random = (uint64_t)index + 1;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&stop)) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t *b = &blocks[(random >> 33) % 24];
        if (*b)
            REQUIRE(gpu_free(*b));
        *b = 0;
        REQUIRE(gpu_malloc(b, (size_t)1 << (9 + (random >> 40) % 15)));
        if ((random >> 50) % 64 == 0)
            setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
    }
    for (int i = 0; i < 24; i++)
        if (blocks[i])
            REQUIRE(gpu_free(blocks[i]));
    return 0;
}

/* One thread of the exporter for each peer. */
static int exchange(int index, void *unused)
{
    static const size_t sizes[] = {700, 40 * KIB, 500 * KIB, 2 * MIB, 9 * MIB};
    int wrong = 0;
    REQUIRE(gpu_open(0));
    for (int round = 0; round < ROUNDS; round++) {
        struct ipc_message m = {.order = IPC_OPEN, .size_bytes = sizes[round % 5],
                                .byte = (unsigned char)(index * ROUNDS + round + 1)};
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, m.size_bytes));
        REQUIRE(gpu_memset(block, m.byte, m.size_bytes));
        REQUIRE(gpu_sync());
        int rc = gpu_ipc_export(&m.handle, block);
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
        struct ipc_message opened = ipc_peer_do(&peers[index], m);
        wrong += opened.rc != 0 || opened.wrong != 0;
        opened.order = IPC_CLOSE;
        wrong += ipc_peer_do(&peers[index], opened).rc != 0;
        wrong += scene_wrong_bytes(block, m.size_bytes, m.byte) != 0;
        REQUIRE(gpu_free(block));
    }
    return wrong;
}

static int part(int index, void *context)
{
    if (index >= PEERS)
        return churn(index, context);
    int wrong = exchange(index, context);
    if (atomic_fetch_add((atomic_int *)context, 1) == PEERS - 1)
        atomic_store(&stop, true);
    return wrong;
}

int main(void)
{
    atomic_int done = 0;
    scene_watchdog(100);
    for (int i = 0; i < PEERS; i++)
        peers[i] = ipc_peer_fork();
    scene_start(1, 100);
    int wrong = scene_threads(PEERS + WORKERS, part, &done);
    for (int i = 0; i < PEERS; i++)
        wrong += ipc_peer_end(&peers[i]) != 0;
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
