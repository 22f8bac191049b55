/* SPDX-License-Identifier: BSD-2-Clause */
/* See idle_oom.h. */
#include "tests/preload/idle_oom.h"
#include "tests/preload/kernels.h"

static size_t half(void)
{
    return free_bytes() / 2 / (32 * MIB) * (32 * MIB);
}

static int take_async(void)
{
    CUdeviceptr block = 0;
    int rc = cuMemAllocAsync(&block, half(), NULL);
    if (rc == 0) {
        REQUIRE(cuMemFreeAsync(block, NULL));
        REQUIRE(gpu_sync());
    }
    return rc;
}

CUmemAllocationProp physical_prop(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return prop;
}

static int take_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = physical_prop().location};
    CUmemoryPool pool = NULL;
    CUdeviceptr block = 0;
    REQUIRE(cuMemPoolCreate(&pool, &props));
    int rc = cuMemAllocFromPoolAsync(&block, half(), pool, NULL);
    if (rc == 0) {
        REQUIRE(cuMemFreeAsync(block, NULL));
        REQUIRE(gpu_sync());
    }
    REQUIRE(cuMemPoolDestroy(pool));
    return rc;
}

int take_physical(void)
{
    CUmemAllocationProp prop = physical_prop();
    CUmemGenericAllocationHandle handle = 0;
    int rc = cuMemCreate(&handle, half(), &prop, 0);
    if (rc == 0)
        REQUIRE(cuMemRelease(handle));
    return rc;
}

/* A segment that grows piece by piece, as frameworks have them, until nothing is left. */
int take_pieces(void)
{
    enum { MOST = 1024 };
    CUmemGenericAllocationHandle handles[MOST];
    CUmemAllocationProp prop = physical_prop();
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t there = free_bytes();
    size_t piece = (there / 100 + 2 * MIB) / (2 * MIB) * (2 * MIB);
    CUdeviceptr base = 0;
    int n = 0, rc = 0;
    REQUIRE(cuMemAddressReserve(&base, MOST * piece, 0, 0, 0));
    while (n < MOST && (rc = cuMemCreate(&handles[n], piece, &prop, 0)) == 0) {
        REQUIRE(cuMemMap(base + (size_t)n * piece, piece, 0, handles[n], 0));
        REQUIRE(cuMemSetAccess(base + (size_t)n * piece, piece, &access, 1));
        n++;
    }
    bool all = (size_t)n * piece >= there / 100 * 95;
    if (!all)
        printf("%d pieces of %zu MiB, of %zu MiB\n", n, piece / MIB, there / MIB);
    for (int i = 0; i < n; i++) {
        REQUIRE(cuMemUnmap(base + (size_t)i * piece, piece));
        REQUIRE(cuMemRelease(handles[i]));
    }
    REQUIRE(cuMemAddressFree(base, MOST * piece));
    return all && rc == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1;
}

static int take_array(void)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 65536, .Height = half() / MIB, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUarray array = NULL;
    int rc = cuArrayCreate(&array, &shape);
    if (rc == 0)
        REQUIRE(cuArrayDestroy(array));
    return rc;
}

static int take_array_3d(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024,
                                     .Height = 1024,
                                     .Depth = half() / (16 * MIB),
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 4};
    CUarray array = NULL;
    int rc = cuArray3DCreate(&array, &shape);
    if (rc == 0)
        REQUIRE(cuArrayDestroy(array));
    return rc;
}

static int take_levels(void)
{
    size_t rows = half() / (512 * KIB);
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 32768,
                                     .Height = rows < 32768 ? rows : 32768,
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 4};
    CUmipmappedArray array = NULL;
    int rc = cuMipmappedArrayCreate(&array, &shape, 1);
    if (rc == 0)
        REQUIRE(cuMipmappedArrayDestroy(array));
    return rc;
}

static int take_pitch(void)
{
    uint64_t block = 0;
    size_t pitch = 0;
    int rc = gpu_malloc_pitch(&block, &pitch, MIB, half() / MIB);
    if (rc == 0)
        REQUIRE(gpu_free(block));
    return rc;
}

static int take_context(void)
{
    CUcontext context = NULL;
#if CUDA_VERSION >= 13000
    int rc = cuCtxCreate(&context, NULL, 0, 0);
#else
    int rc = cuCtxCreate(&context, 0, 0);
#endif
    if (rc == 0)
        REQUIRE(cuCtxDestroy(context));
    REQUIRE(cuCtxSetCurrent(primary));
    return rc;
}

/* A way that makes an object, by a call, and destroys it by another one. */
#define TAKES(name, type, make, destroy)                                                           \
    static int name(void)                                                                          \
    {                                                                                              \
        type object = NULL;                                                                        \
        int rc = (int)(make);                                                                      \
        if (rc == 0)                                                                               \
            REQUIRE(destroy(object));                                                              \
        return rc;                                                                                 \
    }
TAKES(take_stream, CUstream, cuStreamCreateWithPriority(&object, CU_STREAM_NON_BLOCKING, 0),
      cuStreamDestroy)
TAKES(take_event, CUevent, cuEventCreate(&object, 0), cuEventDestroy)
TAKES(take_module, CUmodule, cuModuleLoadData(&object, kernels_ptx), cuModuleUnload)

static int take_graph(void)
{
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    REQUIRE(cuGraphCreate(&graph, 0));
    REQUIRE(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    int rc = cuGraphInstantiate(&exec, graph, 0);
    if (rc == 0)
        REQUIRE(cuGraphLaunch(exec, NULL));
    REQUIRE(gpu_sync());
    if (rc == 0)
        REQUIRE(cuGraphExecDestroy(exec));
    REQUIRE(cuGraphDestroy(graph));
    return rc;
}

static int take_heap(void)
{
    size_t before = 0;
    REQUIRE(cuCtxGetLimit(&before, CU_LIMIT_MALLOC_HEAP_SIZE));
    return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, before + 16 * MIB);
}

/* Memory for the local variables of kernels is taken by the first that is launched. */
int take_launch(void)
{
    uint64_t word = NEW_BLOCK(4096);
    int rc = gpu_fill(word, 1024, 5, NULL);
    wrong += rc == 0 && scene_wrong_bytes(word, 1, 5) != 0;
    REQUIRE(gpu_free(word));
    return rc;
}

static int take_in_capture(void)
{
    CUgraph graph = NULL;
    CUstream stream = NEW_STREAM(false);
    fill_and_free(false);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    int rc = take_physical();
    int ended = gpu_capture_end(stream, &graph);
    if (ended == 0)
        REQUIRE(cuGraphDestroy(graph));
    REQUIRE(gpu_stream_destroy(stream));
    return rc != 0 ? rc : ended;
}

const struct means means[NUM_MEANS] = {
    {"first launch", take_launch, "cuLaunchKernel"},
    {"stream-ordered", take_async, "cuMemAllocAsync"},
    {"memory pool", take_pool, NULL},
    {"physical", take_physical, "cuMemCreate"},
    {"physical, piece by piece", take_pieces, NULL},
    {"array", take_array, "cuArrayCreate_v2"},
    {"array of three dimensions", take_array_3d, "cuArray3DCreate_v2"},
    {"mipmapped array", take_levels, "cuMipmappedArrayCreate"},
    {"pitch", take_pitch, NULL},
    {"context", take_context, NULL},
    {"stream", take_stream, "cuStreamCreateWithPriority"},
    {"event", take_event, NULL},
    {"module", take_module, "cuModuleLoadData"},
    {"graph", take_graph, "cuGraphInstantiateWithFlags"},
    {"heap of kernels", take_heap, "cuCtxSetLimit"},
    {"physical, in a capture", take_in_capture, NULL},
};
