/* SPDX-License-Identifier: BSD-2-Clause */
/* CUDA arrays and mipmapped arrays. They take device memory. No call reads or writes their
 * contents. */
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/physical.h"
#include "tests/sim/thread.h"

/* Both kinds of array, told apart by their magic number. */
struct array {
    uint32_t magic;
    struct physical *physical;
};

#define MAGIC 0x41525259u
#define MIPMAP_MAGIC 0x4d49504du

static struct handles arrays = {.size = sizeof(struct array)};

/* Returns the bytes of one channel, or 0 for a format that is not simulated. */
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

static size_t halved(size_t length, unsigned times)
{
    return length >> times > 0 ? length >> times : 1;
}

/* An array takes the memory of its levels. Each level is half as wide, high and deep as the one
 * before. */
static CUresult create(void *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, uint32_t magic,
                       unsigned levels)
{
    unsigned element = channel_bytes(shape->Format) * shape->NumChannels;
    if (shape->Width == 0 || levels == 0 || element == 0 ||
        (shape->NumChannels & (shape->NumChannels - 1)) != 0 || shape->NumChannels > 4)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(capture_unsafe());
    uint64_t bytes = 0;
    for (unsigned i = 0; i < levels && i < 32; i++)
        bytes += (uint64_t)halved(shape->Width, i) * halved(shape->Height, i) *
                 halved(shape->Depth, i) * element;
    struct physical *physical =
        physical_create(thread_current()->device, round_up(bytes, PAGE_BYTES), false);
    REFUSE(physical == NULL, OUT_OF_MEMORY);
    struct array *array = handles_take(&arrays);
    *array = (struct array){.magic = magic, .physical = physical};
    *(void **)out = array;
    return CUDA_SUCCESS;
}

static CUresult create_2d(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    return create(out,
                  &(CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                             .Height = shape->Height,
                                             .Format = shape->Format,
                                             .NumChannels = shape->NumChannels},
                  MAGIC, 1);
}

static CUresult destroy(void *handle, uint32_t magic)
{
    struct array *array = handle;
    REFUSE((uintptr_t)array < 4096 || array->magic != magic, INVALID_HANDLE);
    context_wait_device(array->physical->device);
    physical_release(array->physical);
    array->magic = 0;
    handles_give(&arrays, array);
    return CUDA_SUCCESS;
}

#define OUT NEEDS(out != NULL && shape != NULL, INVALID_VALUE)

API(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *shape),
    OUT create_2d(out, shape))
API(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *shape),
    OUT create(out, shape, MAGIC, 1))
API(cuMipmappedArrayCreate,
    (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels),
    OUT create(out, shape, MIPMAP_MAGIC, levels))
API(cuArrayDestroy, (CUarray array), destroy(array, MAGIC))
API(cuMipmappedArrayDestroy, (CUmipmappedArray array), destroy(array, MIPMAP_MAGIC))
