/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Cases of park_pointers.h without graphs: questions about an address, objects that keep an
 * address, and some submissions.
 */
#include "tests/gpu/park_pointers.h"

#include <dlfcn.h>
#include <string.h>

/* Texture references are deprecated, and programs use them. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define FUNCTIONS                                                                                  \
    FUNCTION(cuPointerGetAttribute)                                                                \
    FUNCTION(cuPointerGetAttributes)                                                               \
    FUNCTION(cuPointerSetAttribute)                                                                \
    FUNCTION(cuMemGetAddressRange_v2)                                                              \
    FUNCTION(cuMemGetAccess)                                                                       \
    FUNCTION(cuMemRetainAllocationHandle)                                                          \
    FUNCTION(cuMemGetHandleForAddressRange)                                                        \
    FUNCTION(cuIpcGetMemHandle)                                                                    \
    FUNCTION(cuMemHostGetDevicePointer_v2)                                                         \
    FUNCTION(cuMemHostGetFlags)                                                                    \
    FUNCTION(cuMemAdvise_v2)                                                                       \
    FUNCTION(cuMemRangeGetAttribute)                                                               \
    FUNCTION(cuMemRangeGetAttributes)                                                              \
    FUNCTION(cuMemPrefetchAsync_v2)                                                                \
    FUNCTION(cuMemPoolExportPointer)                                                               \
    FUNCTION(cuStreamAttachMemAsync)                                                               \
    FUNCTION(cuStreamSetAttribute)                                                                 \
    FUNCTION(cuTexObjectCreate)                                                                    \
    FUNCTION(cuTexObjectGetResourceDesc)                                                           \
    FUNCTION(cuTexObjectDestroy)                                                                   \
    FUNCTION(cuTexRefCreate)                                                                       \
    FUNCTION(cuTexRefSetAddress_v2)                                                                \
    FUNCTION(cuTexRefSetAddress2D_v3)                                                              \
    FUNCTION(cuTexRefGetAddress_v2)                                                                \
    FUNCTION(cuTexRefSetFormat)                                                                    \
    FUNCTION(cuTensorMapEncodeTiled)                                                               \
    FUNCTION(cuMemcpy)                                                                             \
    FUNCTION(cuMemcpyAsync)                                                                        \
    FUNCTION(cuMemcpy2DAsync_v2)                                                                   \
    FUNCTION(cuMemcpy3DAsync_v2)                                                                   \
    FUNCTION(cuMemcpyPeerAsync)                                                                    \
    FUNCTION(cuStreamWriteValue32_v2)                                                              \
    FUNCTION(cuStreamWaitValue32_v2)                                                               \
    FUNCTION(cuStreamBatchMemOp_v2)

#define FUNCTION(symbol) __typeof__(symbol) *symbol;
static struct {
    FUNCTIONS
} call;
#undef FUNCTION

#define CALL(symbol, ...) (call.symbol ? call.symbol(__VA_ARGS__) : NOT_HERE)

void question_functions(void)
{
#define FUNCTION(symbol) *(void **)&call.symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
}

/* --- attributes ------------------------------------------------------------------------------ */

/* The answer of one attribute. Numbers that the driver counts up are only compared. */
static CUresult attribute(struct look *l, CUpointer_attribute which)
{
    unsigned long long value[4] = {0};
    CUresult rc = CALL(cuPointerGetAttribute, value, which, l->at + 4096);

    if (which == CU_POINTER_ATTRIBUTE_BUFFER_ID || which == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)
        look_say(l, "%s", value[0] == l->number ? "as before" : "another");
    else if (value[0] >= l->at && value[0] < l->at + ARENA_BYTES)
        look_say_address(l, "", value[0]);
    else if (which != CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        look_say(l, "%llx", value[0]);
    return rc;
}

static void number_before(struct look *l, CUpointer_attribute which)
{
    CALL(cuPointerGetAttribute, &l->number, which, l->at + 4096);
}

static void before_buffer_id(struct look *l)
{
    number_before(l, CU_POINTER_ATTRIBUTE_BUFFER_ID);
}

static void before_block_id(struct look *l)
{
    number_before(l, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);
}

#define ATTRIBUTES                                                                                 \
    ATTRIBUTE(CONTEXT, NULL)                                                                       \
    ATTRIBUTE(MEMORY_TYPE, NULL)                                                                   \
    ATTRIBUTE(DEVICE_POINTER, NULL)                                                                \
    ATTRIBUTE(HOST_POINTER, NULL)                                                                  \
    ATTRIBUTE(P2P_TOKENS, NULL)                                                                    \
    ATTRIBUTE(SYNC_MEMOPS, NULL)                                                                   \
    ATTRIBUTE(BUFFER_ID, before_buffer_id)                                                         \
    ATTRIBUTE(IS_MANAGED, NULL)                                                                    \
    ATTRIBUTE(DEVICE_ORDINAL, NULL)                                                                \
    ATTRIBUTE(IS_LEGACY_CUDA_IPC_CAPABLE, NULL)                                                    \
    ATTRIBUTE(RANGE_START_ADDR, NULL)                                                              \
    ATTRIBUTE(RANGE_SIZE, NULL)                                                                    \
    ATTRIBUTE(MAPPED, NULL)                                                                        \
    ATTRIBUTE(ALLOWED_HANDLE_TYPES, NULL)                                                          \
    ATTRIBUTE(IS_GPU_DIRECT_RDMA_CAPABLE, NULL)                                                    \
    ATTRIBUTE(MEMPOOL_HANDLE, NULL)                                                                \
    ATTRIBUTE(MAPPING_SIZE, NULL)                                                                  \
    ATTRIBUTE(MAPPING_BASE_ADDR, NULL)                                                             \
    ATTRIBUTE(MEMORY_BLOCK_ID, before_block_id)

#define ATTRIBUTE(which, before)                                                                   \
    static CUresult attribute_##which(struct look *l)                                              \
    {                                                                                              \
        return attribute(l, CU_POINTER_ATTRIBUTE_##which);                                         \
    }
ATTRIBUTES
#undef ATTRIBUTE

static CUresult attributes(struct look *l)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    CUdeviceptr at = 0;
    int ordinal = -9;
    CUresult rc = CALL(cuPointerGetAttributes, 3, which, (void *[]){&type, &at, &ordinal}, l->at);

    look_say(l, "type %u, device %d, ", type, ordinal);
    look_say_address(l, "at", at);
    return rc;
}

static CUresult set_sync(struct look *l)
{
    int yes = 1;

    return CALL(cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, l->at);
}

/* --- other questions ------------------------------------------------------------------------- */

static CUresult address_range(struct look *l)
{
    CUdeviceptr at = 0;
    size_t bytes = 0;
    CUresult rc = CALL(cuMemGetAddressRange_v2, &at, &bytes, l->at + 4096);

    look_say_address(l, "at", at);
    look_say(l, ", %zu", bytes);
    return rc;
}

static CUresult access_of(struct look *l)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    unsigned long long flags = 99;
    CUresult rc = CALL(cuMemGetAccess, &flags, &location, l->at);

    look_say(l, "%llu", flags);
    return rc;
}

static CUresult retain_handle(struct look *l)
{
    CUmemGenericAllocationHandle handle = 0;
    CUresult rc = CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)l->at);

    if (!rc)
        driver.cuMemRelease(handle);
    return rc;
}

static CUresult dma_buf(struct look *l)
{
    int descriptor = -1;

    return CALL(cuMemGetHandleForAddressRange, &descriptor, l->at, ARENA_BYTES,
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static CUresult ipc_handle(struct look *l)
{
    CUipcMemHandle handle;

    return CALL(cuIpcGetMemHandle, &handle, l->at);
}

static CUresult host_device_pointer(struct look *l)
{
    CUdeviceptr at = 0;

    return CALL(cuMemHostGetDevicePointer_v2, &at, (void *)(uintptr_t)l->at, 0);
}

static CUresult host_flags(struct look *l)
{
    unsigned flags = 0;

    return CALL(cuMemHostGetFlags, &flags, (void *)(uintptr_t)l->at);
}

static CUresult advise(struct look *l)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

    return CALL(cuMemAdvise_v2, l->at, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, location);
}

static CUresult range_attribute(struct look *l)
{
    int value = -9;
    CUresult rc = CALL(cuMemRangeGetAttribute, &value, sizeof value,
                       CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, l->at, 4096);

    look_say(l, "%d", value);
    return rc;
}

static CUresult range_attributes(struct look *l)
{
    int value = -9;
    size_t bytes = sizeof value;
    CUmem_range_attribute which = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;

    return CALL(cuMemRangeGetAttributes, (void *[]){&value}, &bytes, &which, 1, l->at, 4096);
}

static CUresult export_pointer(struct look *l)
{
    CUmemPoolPtrExportData data;

    return CALL(cuMemPoolExportPointer, &data, l->at);
}

static CUresult free_address(struct look *l)
{
    return driver.cuMemFree_v2(l->at);
}

static CUresult free_in_order(struct look *l)
{
    return driver.cuMemFreeAsync(l->at, l->stream);
}

/* --- objects that keep an address ------------------------------------------------------------ */

static CUDA_RESOURCE_DESC linear(struct look *l)
{
    CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR};

    what.res.linear.devPtr = l->at;
    what.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    what.res.linear.numChannels = 1;
    what.res.linear.sizeInBytes = 65536;
    return what;
}

static CUresult texture_linear(struct look *l)
{
    CUDA_RESOURCE_DESC what = linear(l);
    CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};

    return CALL(cuTexObjectCreate, &l->texture, &what, &how, NULL);
}

static void before_texture(struct look *l)
{
    texture_linear(l);
}

static CUresult texture_pitch(struct look *l)
{
    CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_PITCH2D};
    CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};

    what.res.pitch2D.devPtr = l->at;
    what.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT32;
    what.res.pitch2D.numChannels = 1;
    what.res.pitch2D.width = 64;
    what.res.pitch2D.height = 64;
    what.res.pitch2D.pitchInBytes = 1024;
    return CALL(cuTexObjectCreate, &l->texture, &what, &how, NULL);
}

static CUresult texture_description(struct look *l)
{
    CUDA_RESOURCE_DESC what = {0};
    CUresult rc = CALL(cuTexObjectGetResourceDesc, &what, l->texture);

    look_say_address(l, "at", what.res.linear.devPtr);
    return rc;
}

static CUresult texture_destroy(struct look *l)
{
    return CALL(cuTexObjectDestroy, l->texture);
}

static void before_reference(struct look *l)
{
    CALL(cuTexRefCreate, &l->reference);
    CALL(cuTexRefSetFormat, l->reference, CU_AD_FORMAT_UNSIGNED_INT32, 1);
}

static CUresult reference_linear(struct look *l)
{
    size_t offset = 0;

    return CALL(cuTexRefSetAddress_v2, &offset, l->reference, l->at, 65536);
}

static CUresult reference_pitch(struct look *l)
{
    CUDA_ARRAY_DESCRIPTOR how = {
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};

    return CALL(cuTexRefSetAddress2D_v3, l->reference, &how, l->at, 1024);
}

static void before_bound(struct look *l)
{
    before_reference(l);
    reference_linear(l);
}

static CUresult reference_address(struct look *l)
{
    CUdeviceptr at = 0;
    CUresult rc = CALL(cuTexRefGetAddress_v2, &at, l->reference);

    look_say_address(l, "at", at);
    return rc;
}

static CUresult tensor_map(struct look *l)
{
    CUtensorMap map;
    cuuint64_t size[] = {64, 64}, stride[] = {1024};
    cuuint32_t box[] = {16, 16}, step[] = {1, 1};

    return CALL(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2,
                (void *)(uintptr_t)l->at, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult access_window(struct look *l)
{
    CUstreamAttrValue value = {0};

    value.accessPolicyWindow.base_ptr = (void *)(uintptr_t)l->at;
    value.accessPolicyWindow.num_bytes = 65536;
    value.accessPolicyWindow.hitRatio = 1;
    value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
    return CALL(cuStreamSetAttribute, l->stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value);
}

/* --- submissions ----------------------------------------------------------------------------- */

static CUresult launch_unused(struct look *l)
{
    uint64_t n_words = 0;
    uint32_t v = 1;

    return driver.cuLaunchKernel(l->fill, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                 (void *[]){&l->at, &n_words, &v}, NULL);
}

static CUresult launch_used(struct look *l)
{
    uint64_t n_words = 64;
    uint32_t v = 1;

    return driver.cuLaunchKernel(l->fill, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                 (void *[]){&l->at, &n_words, &v}, NULL);
}

static CUresult memset_async(struct look *l)
{
    return driver.cuMemsetD32Async(l->at, 1, 64, l->stream);
}

static CUresult copy_nothing(struct look *l)
{
    return driver.cuMemcpyHtoDAsync_v2(l->at, l->host, 0, l->stream);
}

static CUresult copy_to(struct look *l)
{
    return driver.cuMemcpyHtoDAsync_v2(l->at, l->host, 4096, l->stream);
}

static CUresult copy_from(struct look *l)
{
    return driver.cuMemcpyDtoHAsync_v2(l->host, l->at, 4096, l->stream);
}

static CUresult copy_within(struct look *l)
{
    return driver.cuMemcpyDtoDAsync_v2(l->at, l->at + 65536, 4096, l->stream);
}

static CUresult copy_any(struct look *l)
{
    return CALL(cuMemcpy, l->at, (uintptr_t)l->host, 4096);
}

static CUresult copy_any_async(struct look *l)
{
    return CALL(cuMemcpyAsync, l->at, (uintptr_t)l->host, 4096, l->stream);
}

static CUresult copy_2d(struct look *l)
{
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .srcDevice = (uintptr_t)l->host,
                       .srcPitch = 64,
                       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .dstDevice = l->at,
                       .dstPitch = 64,
                       .WidthInBytes = 64,
                       .Height = 4};

    return CALL(cuMemcpy2DAsync_v2, &c, l->stream);
}

static CUresult copy_3d(struct look *l)
{
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = l->host,
                       .srcPitch = 64,
                       .srcHeight = 4,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = l->at,
                       .dstPitch = 64,
                       .dstHeight = 4,
                       .WidthInBytes = 64,
                       .Height = 4,
                       .Depth = 1};

    return CALL(cuMemcpy3DAsync_v2, &c, l->stream);
}

static CUresult copy_peer(struct look *l)
{
    return CALL(cuMemcpyPeerAsync, l->at, l->context, l->at + 65536, l->context, 4096, l->stream);
}

static CUresult prefetch(struct look *l)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

    return CALL(cuMemPrefetchAsync_v2, l->at, 4096, location, 0, l->stream);
}

static CUresult attach(struct look *l)
{
    return CALL(cuStreamAttachMemAsync, l->stream, l->at, 0, CU_MEM_ATTACH_SINGLE);
}

static CUresult write_value(struct look *l)
{
    return CALL(cuStreamWriteValue32_v2, l->stream, l->at, 7, 0);
}

/* A flag that is there already: zero bits of any value. */
static CUresult wait_value(struct look *l)
{
    return CALL(cuStreamWaitValue32_v2, l->stream, l->at, 0, CU_STREAM_WAIT_VALUE_GEQ);
}

static CUresult batch_values(struct look *l)
{
    CUstreamBatchMemOpParams op = {
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = l->at, .value = 7}};

    return CALL(cuStreamBatchMemOp_v2, l->stream, 1, &op, 0);
}

const struct pointer_case question_cases[] = {
#define ATTRIBUTE(which, before) {"cuPointerGetAttribute " #which, before, attribute_##which},
    ATTRIBUTES
#undef ATTRIBUTE
    {"cuPointerGetAttributes", NULL, attributes},
    {"cuPointerSetAttribute SYNC_MEMOPS", NULL, set_sync},
    {"cuMemGetAddressRange", NULL, address_range},
    {"cuMemGetAccess", NULL, access_of},
    {"cuMemRetainAllocationHandle", NULL, retain_handle},
    {"cuMemGetHandleForAddressRange", NULL, dma_buf},
    {"cuIpcGetMemHandle", NULL, ipc_handle},
    {"cuMemHostGetDevicePointer", NULL, host_device_pointer},
    {"cuMemHostGetFlags", NULL, host_flags},
    {"cuMemAdvise", NULL, advise},
    {"cuMemRangeGetAttribute", NULL, range_attribute},
    {"cuMemRangeGetAttributes", NULL, range_attributes},
    {"cuMemPoolExportPointer", NULL, export_pointer},
    {"cuMemFree", NULL, free_address},
    {"cuMemFreeAsync", NULL, free_in_order},
    {"cuTexObjectCreate, linear", NULL, texture_linear},
    {"cuTexObjectCreate, pitch", NULL, texture_pitch},
    {"cuTexObjectGetResourceDesc", before_texture, texture_description},
    {"cuTexObjectDestroy", before_texture, texture_destroy},
    {"cuTexRefSetAddress", before_reference, reference_linear},
    {"cuTexRefSetAddress2D", before_reference, reference_pitch},
    {"cuTexRefGetAddress", before_bound, reference_address},
    {"cuTensorMapEncodeTiled", NULL, tensor_map},
    {"cuStreamSetAttribute, window", NULL, access_window},
    {"cuStreamAttachMemAsync", NULL, attach},
    {"cuMemPrefetchAsync", NULL, prefetch},
    {"cuLaunchKernel, not touched", NULL, launch_unused},
    {"cuLaunchKernel, touched", NULL, launch_used},
    {"cuMemsetD32Async", NULL, memset_async},
    {"cuMemcpyHtoDAsync of 0 bytes", NULL, copy_nothing},
    {"cuMemcpyHtoDAsync", NULL, copy_to},
    {"cuMemcpyDtoHAsync", NULL, copy_from},
    {"cuMemcpyDtoDAsync", NULL, copy_within},
    {"cuMemcpy", NULL, copy_any},
    {"cuMemcpyAsync", NULL, copy_any_async},
    {"cuMemcpy2DAsync", NULL, copy_2d},
    {"cuMemcpy3DAsync", NULL, copy_3d},
    {"cuMemcpyPeerAsync", NULL, copy_peer},
    {"cuStreamWriteValue32", NULL, write_value},
    {"cuStreamWaitValue32", NULL, wait_value},
    {"cuStreamBatchMemOp", NULL, batch_values},
    {NULL, NULL, NULL},
};
