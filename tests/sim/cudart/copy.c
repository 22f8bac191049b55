/* SPDX-License-Identifier: BSD-2-Clause */
/* The runtime's copies, each with its per-thread twin: it only chooses the driver's function by the
 * copy's direction. No state of its own. */
#include "tests/sim/cudart/cudart.h"

static CUdeviceptr device_pointer(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

static bool known_kind(enum cudaMemcpyKind kind)
{
    return (unsigned)kind <= cudaMemcpyDefault;
}

static cudaError_t copy_sync(bool per_thread, void *dst, const void *src, size_t size,
                             enum cudaMemcpyKind kind)
{
    if (!known_kind(kind))
        return cudaErrorInvalidMemcpyDirection;
    if (size == 0)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return CALL_PTDS(per_thread, cuMemcpyHtoD, 3020, 7000, device_pointer(dst), src, size);
    case cudaMemcpyDeviceToHost:
        return CALL_PTDS(per_thread, cuMemcpyDtoH, 3020, 7000, dst, device_pointer(src), size);
    case cudaMemcpyDeviceToDevice:
        return CALL_PTDS(per_thread, cuMemcpyDtoD, 3020, 7000, device_pointer(dst),
                         device_pointer(src), size);
    default:
        return CALL_PTDS(per_thread, cuMemcpy, 4000, 7000, device_pointer(dst), device_pointer(src),
                         size);
    }
}

static cudaError_t cudaMemcpy_flavour(bool per_thread, void *dst, const void *src, size_t size,
                                      enum cudaMemcpyKind kind)
{
    return IN_CONTEXT(copy_sync(per_thread, dst, src, size, kind));
}
TWINS(cudaMemcpy, ptds, (void *dst, const void *src, size_t size, enum cudaMemcpyKind kind),
      (dst, src, size, kind))

static cudaError_t copy_async(bool per_thread, void *dst, const void *src, size_t size,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (!known_kind(kind))
        return cudaErrorInvalidMemcpyDirection;
    if (size == 0)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return CALL_PTSZ(per_thread, cuMemcpyHtoDAsync, 3020, 7000, device_pointer(dst), src, size,
                         stream);
    case cudaMemcpyDeviceToHost:
        return CALL_PTSZ(per_thread, cuMemcpyDtoHAsync, 3020, 7000, dst, device_pointer(src), size,
                         stream);
    case cudaMemcpyDeviceToDevice:
        return CALL_PTSZ(per_thread, cuMemcpyDtoDAsync, 3020, 7000, device_pointer(dst),
                         device_pointer(src), size, stream);
    default:
        return CALL_PTSZ(per_thread, cuMemcpyAsync, 4000, 7000, device_pointer(dst),
                         device_pointer(src), size, stream);
    }
}

static cudaError_t cudaMemcpyAsync_flavour(bool per_thread, void *dst, const void *src, size_t size,
                                           enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return IN_CONTEXT(copy_async(per_thread, dst, src, size, kind, stream));
}
TWINS(cudaMemcpyAsync, ptsz,
      (void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
      (dst, src, size, kind, stream))
