/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles in a context that has ended, or that a kernel has broken. No handle is opened or made
 * there, and nothing that another context has open is closed. That memory stays open elsewhere.
 */
#include "tests/preload/ipc_peer.h"

#include <unistd.h>

enum { HANDLES = 3 };

static const size_t sizes[HANDLES] = {5 * MIB, 1200, 200 * KIB};

static void try_here(const char *where, const CUipcMemHandle *handles, const uint64_t *blocks,
                     uint64_t opened)
{
    CUipcMemHandle made;
    printf("%s:", where);
    for (int i = 0; i < HANDLES; i++) {
        uint64_t address = 0;
        printf(" opened %d", gpu_ipc_open(&address, handles[i]));
        printf(", made %d;", (int)cuIpcGetMemHandle(&made, blocks[i]));
    }
    printf(" closed %d\n", gpu_ipc_close(opened));
}

static void break_context(void)
{
    REQUIRE(gpu_fill(0x1000, 1024, 1, NULL));
    EXPECT(gpu_sync() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int open_where_nothing_is_served(int from, int to)
{
    CUipcMemHandle handles[HANDLES];
    uint64_t opened[HANDLES] = {0}, blocks[HANDLES] = {0};
    CUcontext ended = NULL, other = NULL, own = NULL;
    size_t wrong = 0;
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&own));
    for (int i = 0; i < HANDLES; i++) {
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
        REQUIRE(gpu_malloc(&blocks[i], sizes[i]));
    }
    REQUIRE(cuCtxCreate(&ended, NULL, 0, 0));
    REQUIRE(cuCtxCreate(&other, NULL, 0, 0));
    REQUIRE(cuCtxDestroy(ended));
    REQUIRE(cuCtxPopCurrent(&other)); /* the ended one is current */
    for (int i = 0; i < HANDLES; i++)
        try_here("ended", handles, blocks, opened[i]);
    REQUIRE(cuCtxSetCurrent(own));
    for (int i = 0; i < HANDLES; i++) {
        wrong += scene_wrong_bytes(opened[i], sizes[i], (unsigned char)(i + 1));
        printf("closed %d; ", gpu_ipc_close(opened[i]));
    }
    printf("%zu wrong bytes\n", wrong);
    for (int i = 0; i < HANDLES; i++)
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
    break_context(); /* the last thing that this process does */
    for (int i = 0; i < HANDLES; i++)
        try_here("broken", handles, blocks, opened[i]);
    fflush(stdout);
    return 0;
}

int main(void)
{
    ipc_share_with(open_where_nothing_is_served, sizes, HANDLES);
    return 0;
}
