/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The runtime's copies and memsets, each with its per-thread twin: it only chooses the driver's
 * function by the copy's direction. No state of its own.
 */
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

static void plane(CUDA_MEMCPY2D *copy, void *dst, size_t dst_pitch, const void *src,
                  size_t src_pitch, enum cudaMemcpyKind kind)
{
    bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    copy->srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy->dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    if (kind == cudaMemcpyDefault)
        copy->srcMemoryType = copy->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy->srcHost = src;
    copy->srcDevice = device_pointer(src);
    copy->srcPitch = src_pitch;
    copy->dstHost = dst;
    copy->dstDevice = device_pointer(dst);
    copy->dstPitch = dst_pitch;
}

static cudaError_t cudaMemcpy2D_flavour(bool per_thread, void *dst, size_t dst_pitch,
                                        const void *src, size_t src_pitch, size_t width,
                                        size_t height, enum cudaMemcpyKind kind)
{
    if (!driver_enter())
        return cudaPeekAtLastError();
    if (!known_kind(kind))
        return error_record(cudaErrorInvalidMemcpyDirection);
    CUDA_MEMCPY2D copy = {.WidthInBytes = width, .Height = height};
    plane(&copy, dst, dst_pitch, src, src_pitch, kind);
    return IN_CONTEXT(CALL_PTDS(per_thread, cuMemcpy2DUnaligned, 3020, 7000, &copy));
}
TWINS(cudaMemcpy2D, ptds,
      (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
       enum cudaMemcpyKind kind),
      (dst, dst_pitch, src, src_pitch, width, height, kind))

static cudaError_t cudaMemcpy2DAsync_flavour(bool per_thread, void *dst, size_t dst_pitch,
                                             const void *src, size_t src_pitch, size_t width,
                                             size_t height, enum cudaMemcpyKind kind,
                                             cudaStream_t stream)
{
    if (!driver_enter())
        return cudaPeekAtLastError();
    if (!known_kind(kind))
        return error_record(cudaErrorInvalidMemcpyDirection);
    CUDA_MEMCPY2D copy = {.WidthInBytes = width, .Height = height};
    plane(&copy, dst, dst_pitch, src, src_pitch, kind);
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuMemcpy2DAsync, 3020, 7000, &copy, stream));
}
TWINS(cudaMemcpy2DAsync, ptsz,
      (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
       enum cudaMemcpyKind kind, cudaStream_t stream),
      (dst, dst_pitch, src, src_pitch, width, height, kind, stream))

static cudaError_t copy_peer(void *dst, int dst_device, const void *src, int src_device,
                             size_t size, bool async, cudaStream_t stream)
{
    CUcontext to = NULL;
    CUcontext from = NULL;
    cudaError_t error = context_primary(dst_device, &to);
    if (error == cudaSuccess)
        error = context_primary(src_device, &from);
    if (error != cudaSuccess)
        return error;
    if (async)
        return CALL(cuMemcpyPeerAsync, 4000, device_pointer(dst), to, device_pointer(src), from,
                    size, stream);
    return CALL(cuMemcpyPeer, 4000, device_pointer(dst), to, device_pointer(src), from, size);
}

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t size)
{
    return IN_CONTEXT(copy_peer(dst, dst_device, src, src_device, size, false, NULL));
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t size, cudaStream_t stream)
{
    return IN_CONTEXT(copy_peer(dst, dst_device, src, src_device, size, true, stream));
}

static cudaError_t cudaMemset_flavour(bool per_thread, void *pointer, int value, size_t size)
{
    return IN_CONTEXT(CALL_PTDS(per_thread, cuMemsetD8, 3020, 7000, device_pointer(pointer),
                                (unsigned char)value, size));
}
TWINS(cudaMemset, ptds, (void *pointer, int value, size_t size), (pointer, value, size))

static cudaError_t cudaMemsetAsync_flavour(bool per_thread, void *pointer, int value, size_t size,
                                           cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuMemsetD8Async, 3020, 7000, device_pointer(pointer),
                                (unsigned char)value, size, stream));
}
TWINS(cudaMemsetAsync, ptsz, (void *pointer, int value, size_t size, cudaStream_t stream),
      (pointer, value, size, stream))

static cudaError_t cudaMemset2D_flavour(bool per_thread, void *pointer, size_t pitch, int value,
                                        size_t width, size_t height)
{
    return IN_CONTEXT(CALL_PTDS(per_thread, cuMemsetD2D8, 3020, 7000, device_pointer(pointer),
                                pitch, (unsigned char)value, width, height));
}
TWINS(cudaMemset2D, ptds, (void *pointer, size_t pitch, int value, size_t width, size_t height),
      (pointer, pitch, value, width, height))
