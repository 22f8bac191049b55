/* SPDX-License-Identifier: BSD-2-Clause */
/* CUDA arrays: they take device memory and know their shape; nothing reads or writes them. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/physical.h"
#include "tests/sim/thread.h"

#define MAGIC 0x41525259u
#define MIPMAP_MAGIC 0x4d49504du

struct CUarray_st {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    struct physical *physical;
};

static struct handles arrays = {.size = sizeof(struct CUarray_st)};

/* Bytes of one channel, or 0 for a format that is not simulated. */
static unsigned channel_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    if (out == NULL || shape == NULL || shape->Width == 0 || channel_bytes(shape->Format) == 0 ||
        (shape->NumChannels != 1 && shape->NumChannels != 2 && shape->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = capture_unsafe();
    if (rc != CUDA_SUCCESS)
        return rc;
    uint64_t bytes = (uint64_t)shape->Width * channel_bytes(shape->Format) * shape->NumChannels;
    bytes *= shape->Height > 0 ? shape->Height : 1;
    bytes *= shape->Depth > 0 ? shape->Depth : 1;
    CUarray array = handles_take(&arrays);
    *array = (struct CUarray_st){
        .magic = MAGIC,
        .shape = *shape,
        .physical = physical_create(thread_current()->device, round_up(bytes, PAGE_BYTES), false)};
    if (array->physical == NULL) {
        array->magic = 0;
        handles_give(&arrays, array);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = array;
    return CUDA_SUCCESS;
}

static CUresult create_2d(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (shape == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                                  .Height = shape->Height,
                                                  .Format = shape->Format,
                                                  .NumChannels = shape->NumChannels});
}

/* A mipmapped array is as much memory as its levels need, each half as wide, high and deep as the
 * one before. */
struct CUmipmappedArray_st {
    uint32_t magic;
    struct physical *physical;
};

static struct handles mipmaps = {.size = sizeof(struct CUmipmappedArray_st)};

static size_t halved(size_t length, unsigned times)
{
    return length == 0 ? 1 : length >> times > 0 ? length >> times : 1;
}

static CUresult create_levels(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                              unsigned levels)
{
    if (out == NULL || shape == NULL || levels == 0 || shape->Width == 0 ||
        channel_bytes(shape->Format) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = capture_unsafe();
    if (rc != CUDA_SUCCESS)
        return rc;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < levels && i < 32; i++)
        bytes += (uint64_t)halved(shape->Width, i) * halved(shape->Height, i) *
                 halved(shape->Depth, i) * channel_bytes(shape->Format) * shape->NumChannels;
    struct physical *physical =
        physical_create(thread_current()->device, round_up(bytes, PAGE_BYTES), false);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = handles_take(&mipmaps);
    **out = (struct CUmipmappedArray_st){.magic = MIPMAP_MAGIC, .physical = physical};
    return CUDA_SUCCESS;
}

static CUresult destroy_levels(CUmipmappedArray array)
{
    if ((uintptr_t)array < 4096 || array->magic != MIPMAP_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    context_wait_device(array->physical->device);
    physical_release(array->physical);
    array->magic = 0;
    handles_give(&mipmaps, array);
    return CUDA_SUCCESS;
}

static bool valid(CUarray array)
{
    return (uintptr_t)array >= 4096 && array->magic == MAGIC;
}

static CUresult destroy(CUarray array)
{
    if (!valid(array))
        return CUDA_ERROR_INVALID_HANDLE;
    context_wait_device(array->physical->device);
    physical_release(array->physical);
    array->magic = 0;
    handles_give(&arrays, array);
    return CUDA_SUCCESS;
}

API(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *shape), create_2d(out, shape))
API(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *shape), create(out, shape))
API(cuMipmappedArrayCreate,
    (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels),
    create_levels(out, shape, levels))
API(cuMipmappedArrayDestroy, (CUmipmappedArray array), destroy_levels(array))
API(cuArrayDestroy, (CUarray array), destroy(array))
