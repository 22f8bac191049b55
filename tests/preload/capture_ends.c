/* SPDX-License-Identifier: BSD-2-Clause */
/* Captures that end with their context, captures beside a call that waits for a kernel, and first
 * allocations inside a capture. */
#include "tests/preload/ipc_peer.h"
#include "tests/preload/scene.h"

/* A capture on a stream of one context begins while another context is current. It ends with its
 * own context, or with a reset of it. Afterwards memory is used again as ever. */

enum { TURNS = 100 };

/* Each time half of the device, written late: it comes back only when that is known to be done. */
static int turns(CUcontext where, CUstream stream)
{
    int failed = 0;
    REQUIRE(cuCtxSetCurrent(where));
    size_t free_bytes = FREE_BYTES();
    size_t size_bytes = free_bytes / 32;
    for (uint32_t i = 0; i < TURNS; i++) {
        uint64_t block = 0;
        if (gpu_malloc(&block, size_bytes) != 0) {
            failed++;
            continue;
        }
        REQUIRE(gpu_spin_fill(block, 1024, i, 10000, stream));
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_stream_sync(stream));
    return failed;
}

static CUcontext capture_in(CUcontext own, CUcontext current, CUstream *stream)
{
    REQUIRE(cuCtxSetCurrent(own));
    REQUIRE(gpu_stream_create(stream, false));
    REQUIRE(cuCtxSetCurrent(current));
    REQUIRE(cuStreamBeginCapture(*stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    return own;
}

/* The stream is a green context's, which ends with its primary one. */
static void capture_in_green(CUcontext current)
{
    CUdevResource whole, part;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    CUstream stream = NULL;
    unsigned groups = 1;
    REQUIRE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE(cuDevSmResourceSplitByCount(&part, &groups, &whole, NULL, 0, 16));
    REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    REQUIRE(cuCtxSetCurrent(current));
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

ACT(a_capture_ends_with_its_context)
{
    CUstream streams[2], captured = NULL;
    int failed = 0;
    scene_start(1, 100);
    CUcontext primary = CURRENT_CONTEXT(), worked = NEW_CONTEXT();
    NEW_STREAMS(streams, 2, false);
    uint64_t block = NEW_BLOCK(4096);
    REQUIRE(gpu_fill(block, 64, 1, streams[1]));
    failed += turns(worked, streams[0]);

    CUcontext own = NEW_CONTEXT();
    capture_in(own, worked, &captured);
    printf("destroyed: %d", (int)cuCtxDestroy(own));
    failed += turns(worked, streams[0]);
    printf(", %d failed\n", failed);

    /* No document says what a real driver makes of such a reset, and older ones have none. */
    if (scene_simulated() && scene_driver_has("cuGreenCtxStreamCreate")) {
        capture_in_green(worked);
        printf("reset, green: %d", (int)cuDevicePrimaryCtxReset(0));
        failed += turns(worked, streams[0]);
        printf(", %d failed\n", failed);
        REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    }

    capture_in(primary, worked, &captured);
    printf("reset: %d", (int)cuDevicePrimaryCtxReset(0));
    failed += turns(worked, streams[0]);
    printf(", %d failed\n", failed);
    return failed != 0;
}

/* ---- a call that waits for a persistent kernel
 * A thread frees memory, or closes another process's, while a kernel runs that only the host can
 * end. The thread that is to end it captures a graph first. It must not wait for the other one, and
 * the capture must not be spoilt. */

/* Of the exporter, which makes one block and keeps it until it is told to end. */
static int keep_a_block(int from, int to)
{
    struct ipc_message m = {.size_bytes = 4 * MIB, .byte = 5};
    REQUIRE(gpu_open(0));
    uint64_t block = NEW_BLOCK(m.size_bytes);
    REQUIRE(gpu_memset(block, m.byte, m.size_bytes));
    REQUIRE(gpu_sync());
    m.rc = gpu_ipc_export(&m.handle, block);
    EXPECT(write(to, &m, sizeof m) == (ssize_t)sizeof m);
    EXPECT(read(from, &m, sizeof m) == (ssize_t)sizeof m);
    return 0;
}

static uint32_t *held;
static CUstream forever, capturing;
static uint64_t used, block_to_lose;
static bool by_ipc;
static atomic_bool about_to;

static int wait_for_kernel(void)
{
    REQUIRE(gpu_open(0));
    atomic_store(&about_to, true);
    return by_ipc ? gpu_ipc_close(block_to_lose) : gpu_free(block_to_lose);
}

static int capture_one(uint64_t ptr)
{
    CUgraph graph = NULL;
    REQUIRE(gpu_capture_begin(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    int spoilt = gpu_fill(ptr, 64, 3, capturing) != 0;
    spoilt += gpu_capture_end(capturing, &graph) != 0;
    if (!spoilt) {
        CUgraphExec exec = NEW_EXEC(graph);
        REQUIRE(gpu_graph_destroy(graph, exec));
    }
    return spoilt;
}

static int either(int index, void *context)
{
    if (index > 0)
        return wait_for_kernel();
    int spoilt = 0;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&about_to))
        scene_sleep_ms(1);
    scene_sleep_ms(100);
    for (int i = 0; i < 3; i++)
        spoilt += capture_one(used);
    scene_let_go(held);
    return spoilt;
}

static int wait_beside_captures(bool closes)
{
    struct ipc_message m = {.rc = 0};
    struct ipc_peer exporter = {.pid = 0};
    scene_watchdog(60);
    by_ipc = closes;
    if (by_ipc)
        exporter = ipc_peer_fork_work(keep_a_block);
    scene_start(1, 60);
    used = NEW_BLOCK(4096);
    if (by_ipc) {
        EXPECT(read(exporter.from, &m, sizeof m) == (ssize_t)sizeof m);
        if (m.rc == CUDA_ERROR_NOT_FOUND || m.rc == CUDA_ERROR_NOT_SUPPORTED || m.rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(m.rc);
        REQUIRE(gpu_ipc_open(&block_to_lose, m.handle));
    } else {
        block_to_lose = NEW_BLOCK(4 * MIB);
    }
    forever = NEW_STREAM(false);
    capturing = NEW_STREAM(false);
    /* The kernel's code is there before it has to be: loading it may wait. */
    REQUIRE(gpu_fill(used, 64, 2, capturing));
    REQUIRE(gpu_stream_sync(capturing));
    held = scene_hold(forever);
    printf("%d failed\n", scene_threads(2, either, NULL));
    REQUIRE(gpu_stream_sync(forever));
    REQUIRE(gpu_free(used));
    if (by_ipc) {
        EXPECT(write(exporter.to, &m, sizeof m) == (ssize_t)sizeof m);
        printf("the exporter ended with %d\n", ipc_peer_join(&exporter));
    }
    return 0;
}

ACT_IS(ACT(a_free_that_waits_holds_no_capture_up), wait_beside_captures(false))

ACT_IS(ACT(a_close_that_waits_holds_no_capture_up), wait_beside_captures(true))

/* A process, and a second context, make their first allocation while a capture is open. The
 * capturing thread makes it, or another one. No capture is spoilt by what the library does then. */

static int take_and_give(int index, void *context)
{
    CUcontext *current = context;
    REQUIRE(cuCtxSetCurrent(*current));
    TAKE_AND_GIVE(24 * MIB);
    return 0;
}

static void capture_around(const char *what, CUstreamCaptureMode mode, CUcontext context,
                           bool elsewhere)
{
    CUgraph graph = NULL;
    CUcontext mine = CURRENT_CONTEXT();
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(stream, mode));
    if (elsewhere)
        REQUIRE(scene_elsewhere(take_and_give, &context));
    else
        take_and_give(0, &context);
    REQUIRE(cuCtxSetCurrent(mine));
    printf("%s: %d\n", what, gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_destroy(graph, NULL));
    REQUIRE(gpu_stream_destroy(stream));
}

ACT(the_first_allocation_may_come_in_a_capture)
{
    scene_start(1, 60);
    CUcontext primary = CURRENT_CONTEXT();
    capture_around("first of all, relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, primary, false);
    CUcontext second = NEW_CONTEXT();
    REQUIRE(cuCtxSetCurrent(primary));
    capture_around("first of another context, in another thread, thread-local",
                   CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, second, true);
    CUcontext third = NEW_CONTEXT();
    capture_around("first of its own context, relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, third,
                   false);
    REQUIRE(cuCtxDestroy(third));
    REQUIRE(cuCtxDestroy(second));
    return 0;
}
