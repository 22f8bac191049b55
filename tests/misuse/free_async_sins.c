/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered frees of what is no allocation any more, or never was one. */
#include "tests/misuse/misuse.h"

int main(void)
{
    uint64_t block = 0;
    misuse_start();
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    misuse_expect("free", gpu_free(block), 0);
    misuse_report("then in stream order", gpu_free_async(block, NULL));
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    misuse_expect("in stream order", gpu_free_async(block, NULL), 0);
    REQUIRE(gpu_sync());
    misuse_expect("then plainly", gpu_free(block), CUDA_ERROR_INVALID_VALUE);
    misuse_report("interior in stream order", gpu_free_async(block + 512, NULL));
    misuse_report("wild in stream order", gpu_free_async(0x1234500, NULL));

    /* Memory of no graph, in a capture: refused, and still there afterwards. */
    CUstream stream = NULL;
    CUgraph graph = NULL;
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_malloc(&block, 64 * KIB));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    misuse_report("in a capture", gpu_free_async(block, stream));
    gpu_capture_end(stream, &graph);
    misuse_report("after it", gpu_free(block));
    return misuse_end();
}
