/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies. A copy from pageable host memory reads it before the call returns. A copy to pageable
 * host memory is complete when the call returns. With page-locked memory an asynchronous copy
 * really is asynchronous. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/config.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define STAGING_BYTES_MAX (64 * KIB)

/* What the function promises of its addresses. */
enum copy_flags {
    FROM_HOST = 1 << 0,
    TO_HOST = 1 << 1,
    SYNCHRONOUS = 1 << 2,
    PEER = 1 << 3, /* the context of each side is named */
};

/* The address belongs to memory of a device. Managed memory counts as such. */
static bool on_device(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    return memory != NULL && memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED;
}

static bool pageable(uint64_t addr)
{
    return memory_find(addr) == NULL;
}

/* The address cannot be host memory: it is NULL, or the device's without memory. */
static bool not_the_hosts(uint64_t addr)
{
    return addr == 0 || (pageable(addr) && memory_reserved(addr));
}

static bool valid(const struct copy *copy, unsigned flags)
{
    CUcontext context = flags & PEER ? NULL : thread_current();
    return (copy->dst_host ? !not_the_hosts(copy->dst)
                           : memory_covers(copy->dst, copy->size, context)) &&
           (copy->src_host ? !not_the_hosts(copy->src)
                           : memory_covers(copy->src, copy->size, context));
}

static CUresult submit(CUdeviceptr dst, CUdeviceptr src, size_t size, unsigned flags,
                       CUstream handle)
{
    struct command command = {.kind = COMMAND_COPY,
                              .copy = {.dst = dst,
                                       .src = src,
                                       .size = size,
                                       .dst_host = flags & TO_HOST,
                                       .src_host = flags & FROM_HOST}};
    struct copy *copy = &command.copy;
    CUstream stream;
    TRY(stream_resolve(handle, &stream));
    if (size == 0)
        return CUDA_SUCCESS;
    REFUSE(!valid(copy, flags), INVALID_VALUE);
    bool synchronous = flags & SYNCHRONOUS;
    if (synchronous && stream->capture == NULL)
        TRY(capture_synchronous(stream));
    if (stream->capture == NULL && copy->src_host && pageable(src)) {
        bool goes_on = synchronous && config.upload_ns > 0; /* documented */
        if (goes_on)
            TRY(stream_wait(stream));
        synchronous = synchronous && !goes_on;
        if (!synchronous && (goes_on || size <= STAGING_BYTES_MAX)) {
            copy->staging = malloc(size);
            REFUSE(copy->staging == NULL, OUT_OF_MEMORY);
            memcpy(copy->staging, (const void *)(uintptr_t)src, size);
            copy->src = (uint64_t)(uintptr_t)copy->staging;
        } else {
            synchronous = true;
        }
    }
    if (stream->capture == NULL && copy->dst_host && pageable(dst))
        synchronous = true;
    /* Between two places on devices even the plain functions do not wait. */
    if (synchronous && on_device(dst) && on_device(src))
        synchronous = false;
    CUresult rc = stream_submit(stream, &command);
    if (rc != CUDA_SUCCESS) {
        command_drop(&command);
        return rc;
    }
    return synchronous && stream->capture == NULL ? stream_wait(stream) : CUDA_SUCCESS;
}

/* Of the functions that tell host and device by the address. */
static unsigned sides(CUdeviceptr dst, CUdeviceptr src)
{
    bool to_host = !on_device(dst) && !memory_reserved(dst);
    bool from_host = !on_device(src) && !memory_reserved(src);
    return (to_host ? TO_HOST : 0u) | (from_host ? FROM_HOST : 0u);
}

#define ADDR(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

API_BOTH(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t size),
         submit(dst, src, size, sides(dst, src) | SYNCHRONOUS, standard))
API_BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t size),
         submit(dst, ADDR(src), size, FROM_HOST | SYNCHRONOUS, standard))
API_BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t size),
         submit(ADDR(dst), src, size, TO_HOST | SYNCHRONOUS, standard))
API_BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t size),
         submit(dst, src, size, SYNCHRONOUS, standard))
API_BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds,
         (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size),
         submit(dst, src, size, SYNCHRONOUS | PEER, standard))
API_BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
         (CUdeviceptr dst, const void *src, size_t size, CUstream stream),
         submit(dst, ADDR(src), size, FROM_HOST, STREAM(stream)))
API_BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
         (void *dst, CUdeviceptr src, size_t size, CUstream stream),
         submit(ADDR(dst), src, size, TO_HOST, STREAM(stream)))
API_BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
         (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream),
         submit(dst, src, size, 0, STREAM(stream)))
