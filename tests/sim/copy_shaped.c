/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies of rectangles and boxes, from the public descriptors. Arrays are not simulated. */
#include "tests/sim/api.h"
#include "tests/sim/copy.h"

struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t x, y, z, pitch, height;
};

/* The address of the first byte, or 0 for a kind of memory that is not supported. */
static uint64_t start(const struct side *side)
{
    uint64_t base =
        side->type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)side->host : side->device;
    if (side->type == CU_MEMORYTYPE_ARRAY || base == 0)
        return 0;
    return base + side->x + (side->y + side->z * side->height) * side->pitch;
}

/* The copy, and what its sides promise. */
static CUresult shape(struct side src, struct side dst, size_t width, size_t height, size_t depth,
                      struct copy *out, unsigned *flags)
{
    if (src.pitch == 0)
        src.pitch = src.x + width;
    if (dst.pitch == 0)
        dst.pitch = dst.x + width;
    if (src.height == 0)
        src.height = src.y + height;
    if (dst.height == 0)
        dst.height = dst.y + height;
    if (src.pitch < src.x + width || dst.pitch < dst.x + width)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct copy){.dst = start(&dst),
                         .src = start(&src),
                         .width = width,
                         .height = height,
                         .depth = depth,
                         .dst_pitch = dst.pitch,
                         .src_pitch = src.pitch,
                         .dst_slice = dst.pitch * dst.height,
                         .src_slice = src.pitch * src.height};
    if (out->dst == 0 || out->src == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *flags |= src.type == CU_MEMORYTYPE_HOST     ? COPY_FROM_HOST
              : src.type == CU_MEMORYTYPE_DEVICE ? COPY_FROM_DEVICE
                                                 : 0;
    *flags |= dst.type == CU_MEMORYTYPE_HOST     ? COPY_TO_HOST
              : dst.type == CU_MEMORYTYPE_DEVICE ? COPY_TO_DEVICE
                                                 : 0;
    return CUDA_SUCCESS;
}

static CUresult submit(struct side src, struct side dst, size_t width, size_t height, size_t depth,
                       unsigned flags, CUstream stream)
{
    struct copy copy;
    if (width == 0 || height == 0 || depth == 0)
        return CUDA_SUCCESS;
    CUresult rc = shape(src, dst, width, height, depth, &copy, &flags);
    return rc == CUDA_SUCCESS ? copy_submit(&copy, flags, stream) : rc;
}

CUresult copy_command(struct command *out, const CUDA_MEMCPY3D *c)
{
    if (c == NULL || c->WidthInBytes == 0 || c->Height == 0 || c->Depth == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct side src = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                       c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    struct side dst = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                       c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    unsigned flags = 0;
    *out = (struct command){.kind = COMMAND_COPY};
    CUresult rc = shape(src, dst, c->WidthInBytes, c->Height, c->Depth, &out->copy, &flags);
    return rc == CUDA_SUCCESS ? copy_prepare(&out->copy, flags) : rc;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, unsigned flags, CUstream stream)
{
    if (c == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct side src = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                       c->srcY,          0,          c->srcPitch,  0};
    struct side dst = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                       c->dstY,          0,          c->dstPitch,  0};
    return submit(src, dst, c->WidthInBytes, c->Height, 1, flags, stream);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *c, unsigned flags, CUstream stream)
{
    if (c == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct side src = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                       c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    struct side dst = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                       c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    return submit(src, dst, c->WidthInBytes, c->Height, c->Depth, flags, stream);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *c, unsigned flags, CUstream stream)
{
    if (c == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct side src = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                       c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    struct side dst = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                       c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    return submit(src, dst, c->WidthInBytes, c->Height, c->Depth, flags, stream);
}

API_BOTH(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *copy),
         copy_2d(copy, COPY_SYNCHRONOUS, standard))
API_BOTH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *copy),
         copy_2d(copy, COPY_SYNCHRONOUS, standard))
API_BOTH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
         copy_2d(copy, 0, STREAM(stream)))
API_BOTH(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *copy),
         copy_3d(copy, COPY_SYNCHRONOUS, standard))
API_BOTH(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
         copy_3d(copy, 0, STREAM(stream)))
API_BOTH(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *copy),
         copy_3d_peer(copy, COPY_SYNCHRONOUS | COPY_PEER, standard))
API_BOTH(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz,
         (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy_3d_peer(copy, COPY_PEER, STREAM(stream)))
