/* SPDX-License-Identifier: BSD-2-Clause */
/* Memsets. On device memory even the plain functions do not wait. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/memory.h"

struct shape {
    size_t pitch, width, height;
    unsigned element_bytes;
};

static CUresult submit(CUdeviceptr dst, struct shape shape, uint32_t value, bool synchronous,
                       CUstream handle)
{
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (shape.width == 0 || shape.height == 0)
        return CUDA_SUCCESS;
    if (dst % shape.element_bytes != 0 ||
        (shape.height > 1 && shape.pitch < shape.width * shape.element_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t end = dst + (shape.height - 1) * shape.pitch + shape.width * shape.element_bytes;
    for (uint64_t at = dst; at < end;) {
        struct memory *memory = memory_find(at);
        if (memory == NULL || memory->freeing)
            return CUDA_ERROR_INVALID_VALUE;
        at = memory->range.hi;
    }
    if (synchronous && stream->capture == NULL) {
        rc = capture_implicit(stream);
        if (rc == CUDA_SUCCESS)
            rc = capture_unsafe();
        if (rc != CUDA_SUCCESS)
            return rc;
    }
    struct command command = {
        .kind = COMMAND_SET,
        .set = {dst, shape.pitch, shape.width, shape.height, shape.element_bytes, value}};
    return stream_submit(stream, &command, NULL);
}

#define LINE(bytes) ((struct shape){0, n, 1, bytes})
#define PLANE(bytes) ((struct shape){pitch, width, height, bytes})

API_BOTH(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char value, size_t n),
         submit(dst, LINE(1), value, true, standard))
API_BOTH(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (CUdeviceptr dst, unsigned short value, size_t n),
         submit(dst, LINE(2), value, true, standard))
API_BOTH(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned value, size_t n),
         submit(dst, LINE(4), value, true, standard))
API_BOTH(cuMemsetD8Async, cuMemsetD8Async_ptsz,
         (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream),
         submit(dst, LINE(1), value, false, STREAM(stream)))
API_BOTH(cuMemsetD16Async, cuMemsetD16Async_ptsz,
         (CUdeviceptr dst, unsigned short value, size_t n, CUstream stream),
         submit(dst, LINE(2), value, false, STREAM(stream)))
API_BOTH(cuMemsetD32Async, cuMemsetD32Async_ptsz,
         (CUdeviceptr dst, unsigned value, size_t n, CUstream stream),
         submit(dst, LINE(4), value, false, STREAM(stream)))
API_BOTH(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds,
         (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height),
         submit(dst, PLANE(1), value, true, standard))
API_BOTH(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds,
         (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
         submit(dst, PLANE(2), value, true, standard))
API_BOTH(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds,
         (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height),
         submit(dst, PLANE(4), value, true, standard))
API_BOTH(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
          CUstream stream),
         submit(dst, PLANE(1), value, false, STREAM(stream)))
API_BOTH(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
          CUstream stream),
         submit(dst, PLANE(2), value, false, STREAM(stream)))
API_BOTH(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
          CUstream stream),
         submit(dst, PLANE(4), value, false, STREAM(stream)))
