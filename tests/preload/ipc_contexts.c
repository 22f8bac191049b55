/* SPDX-License-Identifier: BSD-2-Clause */
/* Handles beside contexts that end, that have ended, or that a kernel has broken. */
#include "tests/preload/ending_contexts.h"
#include "tests/preload/ipc_peer.h"

/* Handles in a context that has ended, or that a kernel has broken. No handle is opened or made
 * there, and nothing that another context has open is closed. That memory stays open elsewhere. */

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
    size_t wrong = 0;
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    CUcontext own = CURRENT_CONTEXT();
    for (int i = 0; i < HANDLES; i++) {
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
        blocks[i] = NEW_BLOCK(sizes[i]);
    }
    CUcontext ended = NEW_CONTEXT(), other = NEW_CONTEXT();
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

ACT(ipc_refused)
{
    ipc_share_with(open_where_nothing_is_served, sizes, HANDLES);
    return 0;
}

/* Threads open handles in contexts of their own, close them in a capture, and end the contexts at
 * once. The memory may still be on its way out. What other threads open meanwhile may come to the
 * same addresses: it has its bytes, is known, and can be closed. A context that could not be ended
 * keeps what it has opened: the simulated driver refuses to end the first one (SIM_FAIL). */

enum { ENDED_HANDLES = 3, THREADS = 3, ROUNDS = 100, ROUNDS_REAL = 4 };

static const size_t ended_sizes[ENDED_HANDLES] = {700, 40 * KIB, 5 * MIB};

static uint32_t open_close_end(const CUipcMemHandle *handles, int round)
{
    uint64_t opened[ENDED_HANDLES] = {0}, base = 0;
    size_t size_bytes = 0;
    uint32_t wrong = 0;
    CUcontext context = NEW_CONTEXT();
    CUstream stream = NEW_STREAM(false);
    for (int i = 0; i < ENDED_HANDLES; i++) {
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
        wrong += scene_wrong_bytes(opened[i], 100, (unsigned char)(i + 1)) != 0;
        wrong += gpu_address_range(&base, &size_bytes, opened[i]) != 0;
    }
    if (round % 2) /* the next ones come to other addresses */
        NEW_BLOCK(3 * MIB);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < ENDED_HANDLES; i++)
        wrong += gpu_ipc_close(opened[i]) != 0;
    REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
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
    uint64_t opened[ENDED_HANDLES] = {0}, base = 0;
    size_t size_bytes = 0;
    CUcontext context = NEW_CONTEXT();
    for (int i = 0; i < ENDED_HANDLES; i++)
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
    printf("ended %d:", (int)cuCtxDestroy(context));
    for (int i = 0; i < ENDED_HANDLES; i++) {
        printf(" range %d", gpu_address_range(&base, &size_bytes, opened[i]));
        printf(", closed %d;", gpu_ipc_close(opened[i]));
    }
    printf(" ended %d\n", (int)cuCtxDestroy(context));
}

/* Handles are opened in a context and closed in a capture, and the context ends past every wrapper.
 * Another context opens them before the capture ends, and gets the same addresses. The next opening
 * takes away what was closed. */
static uint32_t end_unseen(const CUipcMemHandle *handles)
{
    CUresult (*destroy)(CUcontext) =
        (CUresult (*)(CUcontext))(uintptr_t)scene_drivers_own("cuCtxDestroy_v2");
    uint64_t old[ENDED_HANDLES] = {0}, opened[ENDED_HANDLES] = {0}, again = 0;
    uint32_t wrong = destroy == NULL;
    CUstream stream = NEW_STREAM(false);
    CUcontext context = NEW_CONTEXT();
    for (int i = 0; i < ENDED_HANDLES; i++)
        REQUIRE(gpu_ipc_open(&old[i], handles[i]));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < ENDED_HANDLES; i++)
        REQUIRE(gpu_ipc_close(old[i]));
    REQUIRE(destroy(context));
    for (int i = 0; i < ENDED_HANDLES; i++)
        REQUIRE(gpu_ipc_open(&opened[i], handles[i]));
    REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
    REQUIRE(gpu_ipc_open(&again, handles[0]));
    REQUIRE(gpu_ipc_close(again));
    for (int i = 0; i < ENDED_HANDLES; i++) {
        wrong += scene_wrong_bytes(opened[i], 100, (unsigned char)(i + 1)) != 0;
        wrong += gpu_ipc_close(opened[i]) != 0;
    }
    return wrong;
}

static int import(int from, int to)
{
    CUipcMemHandle handles[ENDED_HANDLES];
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    if (scene_simulated()) {
        try_to_end(handles);
        printf("%u wrong behind an end that was not seen\n", end_unseen(handles));
    }
    printf("%d wrong\n", scene_threads(THREADS, live_on_and_on, handles));
    fflush(stdout);
    return 0;
}

ACT(ipc_ended)
{
    ipc_share_with(import, ended_sizes, ENDED_HANDLES);
    return 0;
}

/* Memory that the driver serves, beside contexts that end. It may come to addresses which those
 * had a moment ago. It gets handles for other processes and takes attributes, as ever. The cache
 * is told to leave blocks above 2 MiB to the driver. */

enum { MAKERS = 3 };

static atomic_bool all_ended;

static int share_beside(int index, void *unused)
{
    int refused = 0;
    REQUIRE(gpu_open(0));
    if (index == MAKERS) {
        end_contexts(ENDING_CONTEXTS);
        atomic_store(&all_ended, true);
        return 0;
    }
    for (int round = 0; !atomic_load(&all_ended); round++) {
        CUipcMemHandle handle;
        unsigned on = 1;
        uint64_t block = NEW_BLOCK((size_t)(3 + (index + round) % 3) * MIB);
        if (round % 2)
            refused += cuIpcGetMemHandle(&handle, block) != CUDA_SUCCESS;
        else
            refused +=
                cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block) != CUDA_SUCCESS;
        REQUIRE(gpu_free(block));
        scene_sleep_ms(0);
    }
    return refused;
}

ACT(ipc_beside)
{
    contexts_end_slowly();
    scene_start(1, 60);
    printf("%d refused\n", scene_threads(MAKERS + 1, share_beside, NULL));
    return 0;
}
