/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A capture on a stream of one context begins while another context is current, and ends with its
 * own context, or with a reset of it: afterwards memory is used again as ever.
 */
#include "tests/preload/scene.h"

enum { TURNS = 100 };

/* Each time half of the device, written late: it comes back only when that is known to be done. */
static int turns(CUcontext where, CUstream stream)
{
    size_t free_bytes = 0;
    int failed = 0;
    REQUIRE(cuCtxSetCurrent(where));
    REQUIRE(gpu_mem_info(&free_bytes, NULL));
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

int main(void)
{
    CUcontext primary = NULL;
    CUcontext work = NULL;
    CUcontext own = NULL;
    CUstream streams[2];
    CUstream captured = NULL;
    uint64_t block = 0;
    int failed = 0;
    scene_start(1, 100);
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(cuCtxCreate(&work, NULL, 0, 0));
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_stream_create(&streams[i], false));
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(gpu_fill(block, 64, 1, streams[1]));
    failed += turns(work, streams[0]);

    REQUIRE(cuCtxCreate(&own, NULL, 0, 0));
    capture_in(own, work, &captured);
    printf("destroyed: %d", (int)cuCtxDestroy(own));
    failed += turns(work, streams[0]);
    printf(", %d failed\n", failed);

    capture_in(primary, work, &captured);
    printf("reset: %d", (int)cuDevicePrimaryCtxReset(0));
    failed += turns(work, streams[0]);
    printf(", %d failed\n", failed);
    REQUIRE(gpu_free(block));
    return failed != 0;
}
