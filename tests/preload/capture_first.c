/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first allocation of the process, and the first of a second context, come while a capture is open,
 * in the capturing thread and in another one: whatever they bring along, the capture holds.
 */
#include "tests/preload/scene.h"

static int take_and_give(int index, void *context)
{
    CUcontext *current = context;
    uint64_t block = 0;
    (void)index;
    REQUIRE(cuCtxSetCurrent(*current));
    REQUIRE(gpu_malloc(&block, 24 * MIB));
    REQUIRE(gpu_free(block));
    return 0;
}

static void capture(const char *what, CUstreamCaptureMode mode, CUcontext context, bool elsewhere)
{
    CUcontext mine = NULL;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    REQUIRE(cuCtxGetCurrent(&mine));
    REQUIRE(gpu_stream_create(&stream, false));
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

int main(void)
{
    CUcontext primary = NULL;
    CUcontext second = NULL;
    CUcontext third = NULL;
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    capture("first of all, relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, primary, false);
    REQUIRE(cuCtxCreate(&second, NULL, 0, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    capture("first of another context, in another thread, thread-local",
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, second, true);
    REQUIRE(cuCtxCreate(&third, NULL, 0, 0));
    capture("first of its own context, relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, third, false);
    REQUIRE(cuCtxDestroy(third));
    REQUIRE(cuCtxDestroy(second));
    return 0;
}
