/* SPDX-License-Identifier: BSD-2-Clause */
/* Linear copies. A copy from pageable host memory reads it before the call returns, one to it is
 * complete when the call returns; with page-locked memory an asynchronous copy really is
 * asynchronous. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/copy.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define STAGING_BYTES_MAX (64 * KIB)

/* The address belongs to memory of a device (managed counts as such). */
static bool on_device(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    return memory != NULL && memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED;
}

static bool pageable(uint64_t addr)
{
    return memory_find(addr) == NULL;
}

/* Freed device memory, or none: no host memory either. */
static bool not_the_hosts(uint64_t addr)
{
    return addr == 0 || (pageable(addr) && memory_reserved(addr));
}

static size_t total(const struct copy *copy)
{
    return copy->width * copy->height * copy->depth;
}

/* All rows lie in known memory; a hole is found here rather than by the device. Mapped memory is for those who
 * have access (two H200s, driver 580: a copy from it is refused, one of cuMemAlloc's memory is not). */
static bool covered(uint64_t addr, uint64_t size, CUcontext context)
{
    for (uint64_t at = addr; at < addr + size;) {
        struct memory *memory = memory_find(at);
        if (memory == NULL || memory->freeing || !memory_is_for(memory, context))
            return false;
        at = memory->range.hi;
    }
    return true;
}

static size_t span(const struct copy *copy, size_t pitch, size_t slice)
{
    return (copy->depth - 1) * slice + (copy->height - 1) * pitch + copy->width;
}

CUresult copy_prepare(struct copy *copy, enum copy_flags flags)
{
    copy->dst_host = flags & COPY_TO_HOST || (!(flags & COPY_TO_DEVICE) && pageable(copy->dst));
    copy->src_host = flags & COPY_FROM_HOST || (!(flags & COPY_FROM_DEVICE) && pageable(copy->src));
    CUcontext context = flags & COPY_PEER ? NULL : thread_current();
    if ((!copy->dst_host && !covered(copy->dst, span(copy, copy->dst_pitch, copy->dst_slice), context)) ||
        (!copy->src_host && !covered(copy->src, span(copy, copy->src_pitch, copy->src_slice), context)) ||
        (copy->dst_host && not_the_hosts(copy->dst)) ||
        (copy->src_host && not_the_hosts(copy->src)))
        return CUDA_ERROR_INVALID_VALUE;
    copy->peer = true; /* copies between devices need no peer access */
    return CUDA_SUCCESS;
}

CUresult copy_submit(const struct copy *request, enum copy_flags flags, CUstream handle)
{
    struct command command = {.kind = COMMAND_COPY, .copy = *request};
    struct copy *copy = &command.copy;
    CUstream stream;
    CUresult rc = stream_resolve(handle, &stream);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (total(copy) == 0)
        return CUDA_SUCCESS;
    rc = copy_prepare(copy, flags);
    if (rc != CUDA_SUCCESS)
        return rc;
    bool synchronous = flags & COPY_SYNCHRONOUS;
    if (synchronous && stream->capture == NULL) {
        rc = capture_implicit(stream);
        if (rc == CUDA_SUCCESS)
            rc = capture_unsafe();
        if (rc != CUDA_SUCCESS)
            return rc;
    }
    if (stream->capture == NULL && copy->src_host && pageable(copy->src)) {
        if (!synchronous && copy->height * copy->depth == 1 && copy->width <= STAGING_BYTES_MAX) {
            copy->staging = malloc(copy->width);
            if (copy->staging == NULL)
                return CUDA_ERROR_OUT_OF_MEMORY;
            memcpy(copy->staging, (const void *)(uintptr_t)copy->src, copy->width);
            copy->src = (uint64_t)(uintptr_t)copy->staging;
        } else {
            synchronous = true;
        }
    }
    if (stream->capture == NULL && copy->dst_host && pageable(copy->dst))
        synchronous = true;
    /* Between two places on devices even the plain functions do not wait. */
    if (synchronous && on_device(copy->dst) && on_device(copy->src))
        synchronous = false;
    rc = stream_submit(stream, &command, NULL);
    if (rc != CUDA_SUCCESS) {
        command_drop(&command);
        return rc;
    }
    return synchronous && stream->capture == NULL ? stream_wait(stream) : CUDA_SUCCESS;
}

static CUresult linear(CUdeviceptr dst, CUdeviceptr src, size_t size, unsigned flags,
                       CUstream stream)
{
    struct copy copy = {.dst = dst, .src = src, .width = size, .height = 1, .depth = 1};
    return copy_submit(&copy, flags, stream);
}

/* Each copy of a batch by itself, in order: one of the orders that are allowed. */
static CUresult batch(CUdeviceptr *dst, CUdeviceptr *src, size_t *sizes, size_t count,
                      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                      size_t *failed, CUstream stream)
{
    CUresult rc = CUDA_SUCCESS;
    if (failed != NULL)
        *failed = SIZE_MAX;
    if (dst == NULL || src == NULL || sizes == NULL || count == 0 || attributes == NULL ||
        indices == NULL || attribute_count == 0 || attribute_count > count || indices[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && rc == CUDA_SUCCESS; i++) {
        rc = linear(dst[i], src[i], sizes[i], 0, stream);
        if (rc != CUDA_SUCCESS && failed != NULL)
            *failed = i;
    }
    return rc;
}

#define ADDR(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
#define H2D (COPY_FROM_HOST | COPY_TO_DEVICE)
#define D2H (COPY_FROM_DEVICE | COPY_TO_HOST)
#define D2D (COPY_FROM_DEVICE | COPY_TO_DEVICE)
#define SYNC COPY_SYNCHRONOUS

API_BOTH(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t size),
         linear(dst, src, size, SYNC, standard))
API_BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t size),
         linear(dst, ADDR(src), size, H2D | SYNC, standard))
API_BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t size),
         linear(ADDR(dst), src, size, D2H | SYNC, standard))
API_BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t size),
         linear(dst, src, size, D2D | SYNC, standard))
API_BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds,
         (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size),
         linear(dst, src, size, D2D | SYNC | COPY_PEER, standard))
API_BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz,
         (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream),
         linear(dst, src, size, 0, STREAM(stream)))
API_BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
         (CUdeviceptr dst, const void *src, size_t size, CUstream stream),
         linear(dst, ADDR(src), size, H2D, STREAM(stream)))
API_BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
         (void *dst, CUdeviceptr src, size_t size, CUstream stream),
         linear(ADDR(dst), src, size, D2H, STREAM(stream)))
API_BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
         (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream),
         linear(dst, src, size, D2D, STREAM(stream)))
API_BOTH(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
         (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size,
          CUstream stream),
         linear(dst, src, size, D2D | COPY_PEER, STREAM(stream)))
API_BOTH(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
         (CUdeviceptr * dst, CUdeviceptr *src, size_t *sizes, size_t count,
          CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, size_t *failed,
          CUstream stream),
         batch(dst, src, sizes, count, attributes, indices, attribute_count, failed,
               STREAM(stream)))
API_BOTH(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
         (CUdeviceptr * dst, CUdeviceptr *src, size_t *sizes, size_t count,
          CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, CUstream stream),
         batch(dst, src, sizes, count, attributes, indices, attribute_count, NULL, STREAM(stream)))
