/* SPDX-License-Identifier: BSD-2-Clause */
/* Memsets. On device memory the synchronous functions do not wait either. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/memory.h"

static CUresult submit(CUdeviceptr dst, size_t count, unsigned element_bytes, uint32_t value,
                       bool synchronous, CUstream stream)
{
    if (count == 0)
        return CUDA_SUCCESS;
    REFUSE(dst % element_bytes != 0, INVALID_VALUE);
    REFUSE(!memory_covers(dst, count * element_bytes, NULL), INVALID_VALUE);
    if (synchronous && stream->capture == NULL)
        TRY(capture_synchronous(stream));
    struct command command = {.kind = COMMAND_SET, .set = {dst, count, element_bytes, value}};
    return stream_submit(stream, &command);
}

API_STREAM(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char value, size_t n),
           standard, submit(dst, n, 1, value, true, on))
API_STREAM(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned value, size_t n),
           standard, submit(dst, n, 4, value, true, on))
API_STREAM(cuMemsetD8Async, cuMemsetD8Async_ptsz,
           (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream), STREAM(stream),
           submit(dst, n, 1, value, false, on))
API_STREAM(cuMemsetD32Async, cuMemsetD32Async_ptsz,
           (CUdeviceptr dst, unsigned value, size_t n, CUstream stream), STREAM(stream),
           submit(dst, n, 4, value, false, on))
