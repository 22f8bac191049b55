/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Kinds of park_quiet.h that are memsets, copies, host functions and stream memory operations.
 */
#include "tests/gpu/park_quiet.h"

#include <stdlib.h>
#include <unistd.h>

static void fill_host(uint32_t *at, uint64_t n_words, uint32_t v)
{
    for (uint64_t i = 0; i < n_words; i++)
        at[i] = v;
}

/* --- sets and copies ------------------------------------------------------------------------- */

static CUresult submit_memset(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32Async(lane_part(l, part), v, lane_words(l), l->stream);
}

static CUresult submit_memset_sync(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32_v2(lane_part(l, part), v, lane_words(l));
}

static CUresult submit_pageable(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(l->pageable, lane_words(l), v);
    return driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), l->pageable, l->kind->part_bytes,
                                       l->stream);
}

static CUresult submit_pageable_sync(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(l->pageable, lane_words(l), v);
    return driver.cuMemcpyHtoD_v2(lane_part(l, part), l->pageable, l->kind->part_bytes);
}

static CUresult submit_pinned(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(lane_pinned(l, part), lane_words(l), v);
    return driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), lane_pinned(l, part),
                                       l->kind->part_bytes, l->stream);
}

static bool has_2d(struct lane *l)
{
    (void)l;
    return call.cuMemcpy2DAsync_v2;
}

static CUresult submit_2d(struct lane *l, unsigned part, uint32_t v)
{
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = lane_pinned(l, part),
                       .srcPitch = 256,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = lane_part(l, part),
                       .dstPitch = 256,
                       .WidthInBytes = 256,
                       .Height = l->kind->part_bytes / 256};

    fill_host(lane_pinned(l, part), lane_words(l), v);
    return call.cuMemcpy2DAsync_v2(&c, l->stream);
}

#if CUDA_VERSION >= 13000
static bool has_batch(struct lane *l)
{
    (void)l;
    return call.cuMemcpyBatchAsync_v2;
}

static CUresult submit_batch(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr to = lane_part(l, part), from = (uintptr_t)lane_pinned(l, part);
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t bytes = l->kind->part_bytes, first = 0;

    fill_host(lane_pinned(l, part), lane_words(l), v);
    return call.cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &attributes, &first, 1, l->stream);
}
#endif

static CUresult submit_between(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = quiet_set_source(l, part, v);

    return rc ? rc
              : driver.cuMemcpyDtoDAsync_v2(lane_part(l, part), lane_source(l, part),
                                            l->kind->part_bytes, l->stream);
}

static CUresult submit_download(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = quiet_fill(l->stream, lane_part(l, part), lane_words(l), v);

    return rc ? rc
              : driver.cuMemcpyDtoHAsync_v2(lane_pinned(l, part), lane_part(l, part),
                                            l->kind->part_bytes, l->stream);
}

static CUresult submit_stream_ordered(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr block = 0;
    CUresult rc = driver.cuMemAllocAsync(&block, l->kind->part_bytes, l->stream);

    rc = rc ? rc : driver.cuMemsetD32Async(block, v, lane_words(l), l->stream);
    rc =
        rc ? rc
           : driver.cuMemcpyDtoDAsync_v2(lane_part(l, part), block, l->kind->part_bytes, l->stream);
    return rc ? rc : driver.cuMemFreeAsync(block, l->stream);
}

/* --- host functions, stream memory operations ------------------------------------------------ */

static bool has_host_functions(struct lane *l)
{
    (void)l;
    return call.cuLaunchHostFunc;
}

struct host_fill {
    uint32_t *at;
    uint64_t n_words;
    uint32_t v;
};

static void CUDA_CB host_fill(void *arg)
{
    struct host_fill *f = arg;

    usleep(20);
    fill_host(f->at, f->n_words, f->v);
    free(f);
}

/* The copy behind a host function brings what the function has written. */
static CUresult submit_host_function(struct lane *l, unsigned part, uint32_t v)
{
    struct host_fill *f = malloc(sizeof(*f));
    CUresult rc;

    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = (struct host_fill){lane_pinned(l, part), lane_words(l), v};
    rc = call.cuLaunchHostFunc(l->stream, host_fill, f);
    return rc ? rc
              : driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), lane_pinned(l, part),
                                            l->kind->part_bytes, l->stream);
}

static bool has_stream_values(struct lane *l)
{
    (void)l;
    return call.cuStreamWriteValue32_v2 && call.cuStreamWaitValue32_v2 &&
           call.cuStreamBatchMemOp_v2;
}

static CUresult submit_write_value(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = quiet_spin(l->stream);

    for (uint64_t i = 0; i < lane_words(l) && !rc; i++)
        rc = call.cuStreamWriteValue32_v2(l->stream, lane_part(l, part) + 4 * i, v, 0);
    return rc;
}

static CUresult submit_batch_values(struct lane *l, unsigned part, uint32_t v)
{
    CUstreamBatchMemOpParams ops[64];
    unsigned count = (unsigned)lane_words(l) < 64 ? (unsigned)lane_words(l) : 64;
    CUresult rc = quiet_spin(l->stream);

    for (unsigned i = 0; i < count; i++)
        ops[i] =
            (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                      .address = lane_part(l, part) + 4 * i,
                                                      .value = v}};
    return rc ? rc : call.cuStreamBatchMemOp_v2(l->stream, count, ops, 0);
}

/* One stream waits in the arena for the value that the other one writes there. The write is
 * submitted first: streams may share a queue of the GPU, and there a wait may only be behind the
 * write that ends it. */
static CUresult submit_wait_value(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr flag = lane_source(l, part);
    CUresult rc = quiet_spin(l->other);

    rc = rc ? rc : call.cuStreamWriteValue32_v2(l->other, flag, v, 0);
    rc = rc ? rc : call.cuStreamWaitValue32_v2(l->stream, flag, v, CU_STREAM_WAIT_VALUE_GEQ);
    return rc ? rc : driver.cuMemsetD32Async(lane_part(l, part), v, lane_words(l), l->stream);
}

const struct kind copy_kinds[] = {
    {"memset", PART_SMALL, NULL, submit_memset, false},
    {"memset, synchronous", PART_SMALL, NULL, submit_memset_sync, false},
    {"pageable upload, 4 KiB", PART_SMALL, NULL, submit_pageable, false},
    {"pageable upload, 256 KiB", PART_LARGE, NULL, submit_pageable, false},
    {"pageable upload, synchronous", PART_LARGE, NULL, submit_pageable_sync, false},
    {"pinned upload", PART_LARGE, NULL, submit_pinned, false},
    {"2D upload", PART_SMALL, has_2d, submit_2d, false},
#if CUDA_VERSION >= 13000
    {"batch of copies", PART_SMALL, has_batch, submit_batch, false},
#endif
    {"copy on the device", PART_SMALL, NULL, submit_between, false},
    {"download", PART_SMALL, NULL, submit_download, true},
    {"stream-ordered memory", PART_SMALL, NULL, submit_stream_ordered, false},
    {"host function, then upload", PART_SMALL, has_host_functions, submit_host_function, false},
    {"stream writes", 64, has_stream_values, submit_write_value, false},
    {"batch of stream writes", 64, has_stream_values, submit_batch_values, false},
    {"stream waits for a value", PART_SMALL, has_stream_values, submit_wait_value, false},
    {NULL, 0, NULL, NULL, false},
};
