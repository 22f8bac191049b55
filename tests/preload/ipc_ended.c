/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads open handles in contexts of their own, close them in a capture, and end the contexts at
 * once. The memory may still be on its way out. What other threads open meanwhile may come to the
 * same addresses: it has its bytes, is known, and can be closed. A context that could not be ended
 * keeps what it has opened: the simulated driver refuses to end the first one (SIM_FAIL).
 */
#include "tests/preload/ipc_peer.h"

#include <unistd.h>

enum { HANDLES = 3, THREADS = 3, ROUNDS = 100, ROUNDS_REAL = 4 };

static const size_t sizes[HANDLES] = {700, 40 * KIB, 5 * MIB};

static uint32_t open_close_end(const CUipcMemHandle *handles, int round)
{
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    uint64_t opened[HANDLES] = {0}, base = 0, own = 0;
    size_t size_bytes = 0;
    uint32_t wrong = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    REQUIRE(gpu_stream_create(&stream, false));
    for (int i = 0; i < HANDLES; i++) {
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
        wrong += scene_wrong_bytes(opened[i], 100, (unsigned char)(i + 1)) != 0;
        wrong += gpu_address_range(&base, &size_bytes, opened[i]) != 0;
    }
    if (round % 2) /* the next ones come to other addresses */
        REQUIRE(gpu_malloc(&own, 3 * MIB));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < HANDLES; i++)
        wrong += gpu_ipc_close(opened[i]) != 0;
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_destroy(graph, NULL));
    if (round % 4 < 2)
        usleep(200);
    REQUIRE(cuCtxDestroy(context));
    return wrong;
}

static int live_on_and_on(int index, void *context)
{
    const CUipcMemHandle *handles = context;
    uint32_t wrong = 0;
    for (int i = scene_simulated() ? ROUNDS : ROUNDS_REAL; i > 0; i--)
        wrong += open_close_end(handles, i + index);
    return (int)wrong;
}

static void try_to_end(const CUipcMemHandle *handles)
{
    CUcontext context = NULL;
    uint64_t opened[HANDLES] = {0}, base = 0;
    size_t size_bytes = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    for (int i = 0; i < HANDLES; i++)
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
    printf("ended %d:", (int)cuCtxDestroy(context));
    for (int i = 0; i < HANDLES; i++) {
        printf(" range %d", gpu_address_range(&base, &size_bytes, opened[i]));
        printf(", closed %d;", gpu_ipc_close(opened[i]));
    }
    printf(" ended %d\n", (int)cuCtxDestroy(context));
}

static int import(int from, int to)
{
    CUipcMemHandle handles[HANDLES];
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    if (scene_simulated())
        try_to_end(handles);
    printf("%d wrong\n", scene_threads(THREADS, live_on_and_on, handles));
    fflush(stdout);
    return 0;
}

int main(void)
{
    ipc_share_with(import, sizes, HANDLES);
    return 0;
}
