/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which calls look at the memory that an address names, before any work runs. While a process is
 * parked its addresses stay reserved, but nothing is mapped there.
 *
 * Each call is made twice: where memory is mapped, and where it is away, which means unmapped and
 * released. A call whose code or answer differs has to be gated: a row of submit.def, a HOOK_NAMES
 * or HOOK_QUESTION row of hooks.def, or a wrapper that calls gate_use_begin. All others the library
 * passes while the process is parked, so they must not differ.
 *
 *   park_pointers
 * prints the calls that differ. Exit status 0; 1 if a call differs that is passed, or none does
 * that is gated; 77 without a GPU.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Texture references are deprecated, and programs use them. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define ARENA_BYTES ((size_t)8 << 20)
#define NOT_HERE ((CUresult) - 1) /* the driver has no such function */

static const char *const gated[] = {
#define SUBMIT(symbol, ...) #symbol,
#include "shim/driver/submit.def"
#define HOOK_NAMES(symbol, ...) #symbol,
#define HOOK_QUESTION(symbol, ...) #symbol,
#include "shim/driver/hooks.def"
    /* By hand (shim/entry/info.c) */
    "cuPointerGetAttribute",
    "cuMemGetAddressRange_v2",
    "cuMemGetAccess",
};

/* What a call needs before it. Those from GRAPH on have a graph, those from COPY on a node in it,
 * and those from COPY_EXEC on an executable graph. */
enum before {
    NOTHING,
    TEXTURE,
    REFERENCE,
    BOUND,
    GRAPH,
    COPY,
    MEMSET,
    BATCH,
    KERNEL,
    COPY_EXEC,
    MEMSET_EXEC,
    BATCH_EXEC,
    KERNEL_EXEC
};

/* What a call gives. All of it is compared. */
struct answer {
    CUresult rc;
    CUdeviceptr at;
    size_t bytes;
    unsigned long long value;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_RESOURCE_DESC resource;
    CUtensorMap map;
};

static struct look {
    CUdeviceptr at; /* the arena */
    CUcontext context;
    CUstream stream;
    CUgraph graph, other;
    CUgraphNode node, new_node;
    CUgraphExec exec;
    CUtexObject texture, new_texture;
    CUtexref reference;
    CUmemLocation location;
    CUmemGenericAllocationHandle handle;
    /* Arguments, which name the arena */
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUstreamBatchMemOpParams op;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch, got_batch;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraphNodeParams any;
    CUDA_RESOURCE_DESC linear;
    CUDA_TEXTURE_DESC texels;
    CUDA_ARRAY_DESCRIPTOR plane;
    CUgraphExecUpdateResultInfo update;
    CUstreamAttrValue window;
    CUmemPoolPtrExportData exported;
    void *host; /* pinned */
    uint64_t n_words;
    uint32_t v;
    void *kernel_args[3];
} l;
static struct answer *answer;

/* The function by its exact name; NULL: the driver has none. */
#define FUNCTION(name, symbol)                                                                     \
    __typeof__(symbol) *name;                                                                      \
    *(void **)&name = dlsym(driver.handle, #symbol)

#define MAKE(symbol, args)                                                                         \
    do {                                                                                           \
        FUNCTION(call_, symbol);                                                                   \
        if (call_)                                                                                 \
            call_ args;                                                                            \
    } while (0)

/* CASE(symbol, before, (arguments)) */
#define CASES                                                                                      \
    CASE(cuMemGetAddressRange_v2, NOTHING, (&answer->at, &answer->bytes, l.at))                    \
    CASE(cuMemGetAccess, NOTHING, (&answer->value, &l.location, l.at))                             \
    CASE(cuPointerGetAttribute, NOTHING, (&answer->value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, l.at)) \
    CASE(cuMemHostGetFlags, NOTHING, ((unsigned *)&answer->value, (void *)(uintptr_t)l.at))        \
    CASE(cuMemPoolExportPointer, NOTHING, (&l.exported, l.at))                                     \
    CASE(cuMemAdvise_v2, NOTHING, (l.at, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, l.location))         \
    CASE(cuMemRangeGetAttribute, NOTHING,                                                          \
         (&answer->value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, l.at, 4096))                      \
    CASE(cuMemRangeGetAttributes, NOTHING,                                                         \
         ((void *[]){&answer->value}, (size_t[]){4},                                               \
          (CUmem_range_attribute[]){CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY}, 1, l.at, 4096))           \
    CASE(cuStreamSetAttribute, NOTHING,                                                            \
         (l.stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &l.window))                          \
    CASE(cuTensorMapEncodeTiled, NOTHING,                                                          \
         (&answer->map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)(uintptr_t)l.at,                \
          (cuuint64_t[]){64, 64}, (cuuint64_t[]){1024}, (cuuint32_t[]){16, 16},                    \
          (cuuint32_t[]){1, 1}, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,         \
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))                     \
    CASE(cuTexObjectCreate, NOTHING, (&l.new_texture, &l.linear, &l.texels, NULL))                 \
    CASE(cuTexObjectGetResourceDesc, TEXTURE, (&answer->resource, l.texture))                      \
    CASE(cuTexObjectDestroy, TEXTURE, (l.texture))                                                 \
    CASE(cuTexRefSetAddress_v2, REFERENCE, (&answer->bytes, l.reference, l.at, 65536))             \
    CASE(cuTexRefSetAddress2D_v3, REFERENCE, (l.reference, &l.plane, l.at, 1024))                  \
    CASE(cuTexRefGetAddress_v2, BOUND, (&answer->at, l.reference))                                 \
    CASE(cuGraphAddMemcpyNode, GRAPH, (&l.new_node, l.graph, NULL, 0, &l.copy, l.context))         \
    CASE(cuGraphAddMemsetNode, GRAPH, (&l.new_node, l.graph, NULL, 0, &l.set, l.context))          \
    CASE(cuGraphAddBatchMemOpNode, GRAPH, (&l.new_node, l.graph, NULL, 0, &l.batch))               \
    CASE(cuGraphAddKernelNode_v2, GRAPH, (&l.new_node, l.graph, NULL, 0, &l.kernel))               \
    CASE(cuGraphAddMemFreeNode, GRAPH, (&l.new_node, l.graph, NULL, 0, l.at))                      \
    CASE(cuGraphAddNode_v2, GRAPH, (&l.new_node, l.graph, NULL, NULL, 0, &l.any))                  \
    CASE(cuGraphMemcpyNodeSetParams, COPY, (l.node, &l.copy))                                      \
    CASE(cuGraphMemsetNodeSetParams, MEMSET, (l.node, &l.set))                                     \
    CASE(cuGraphBatchMemOpNodeSetParams, BATCH, (l.node, &l.batch))                                \
    CASE(cuGraphKernelNodeSetParams_v2, KERNEL, (l.node, &l.kernel))                               \
    CASE(cuGraphNodeSetParams, COPY, (l.node, &l.any))                                             \
    CASE(cuGraphMemcpyNodeGetParams, COPY, (l.node, &answer->copy))                                \
    CASE(cuGraphMemsetNodeGetParams, MEMSET, (l.node, &answer->set))                               \
    CASE(cuGraphBatchMemOpNodeGetParams, BATCH, (l.node, &l.got_batch))                            \
    CASE(cuGraphClone, COPY, (&l.other, l.graph))                                                  \
    CASE(cuGraphDebugDotPrint, COPY, (l.graph, "/dev/null", 1))                                    \
    CASE(cuGraphDestroy, COPY, (l.graph))                                                          \
    CASE(cuGraphInstantiateWithFlags, COPY, (&l.exec, l.graph, 0))                                 \
    CASE(cuGraphInstantiateWithFlags, MEMSET, (&l.exec, l.graph, 0))                               \
    CASE(cuGraphInstantiateWithFlags, KERNEL, (&l.exec, l.graph, 0))                               \
    CASE(cuGraphExecMemcpyNodeSetParams, COPY_EXEC, (l.exec, l.node, &l.copy, l.context))          \
    CASE(cuGraphExecMemsetNodeSetParams, MEMSET_EXEC, (l.exec, l.node, &l.set, l.context))         \
    CASE(cuGraphExecBatchMemOpNodeSetParams, BATCH_EXEC, (l.exec, l.node, &l.batch))               \
    CASE(cuGraphExecKernelNodeSetParams_v2, KERNEL_EXEC, (l.exec, l.node, &l.kernel))              \
    CASE(cuGraphExecNodeSetParams, COPY_EXEC, (l.exec, l.node, &l.any))                            \
    CASE(cuGraphExecUpdate_v2, COPY_EXEC, (l.exec, l.graph, &l.update))                            \
    CASE(cuGraphExecDestroy, COPY_EXEC, (l.exec))

#define CASE(symbol, before, args)                                                                 \
    static CUresult call_##symbol##_##before(void)                                                 \
    {                                                                                              \
        FUNCTION(call_, symbol);                                                                   \
        return call_ ? call_ args : NOT_HERE;                                                      \
    }
CASES
#undef CASE

static const struct pointer_case {
    const char *symbol;
    enum before before;
    CUresult (*call)(void);
} cases[] = {
#define CASE(symbol, before, args) {#symbol, before, call_##symbol##_##before},
    CASES
#undef CASE
};

/* --- the arena, and what a call needs -------------------------------------------------------- */

static void map(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = l.location};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    DRIVER_CHECK(driver.cuMemCreate(&l.handle, ARENA_BYTES, &prop, 0));
    DRIVER_CHECK(driver.cuMemMap(l.at, ARENA_BYTES, 0, l.handle, 0));
    DRIVER_CHECK(driver.cuMemSetAccess(l.at, ARENA_BYTES, &access, 1));
}

static void unmap(void)
{
    DRIVER_CHECK(driver.cuMemUnmap(l.at, ARENA_BYTES));
    DRIVER_CHECK(driver.cuMemRelease(l.handle));
}

static void start(void)
{
    CUmodule module;

    l.context = driver_start(0);
    l.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    DRIVER_CHECK(driver.cuMemAddressReserve(&l.at, ARENA_BYTES, 0, 0, 0));
    DRIVER_CHECK(driver.cuStreamCreate(&l.stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuMemAllocHost_v2(&l.host, 4096));
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&l.kernel.func, module, "fill"));
    l.kernel.gridDimX = l.kernel.gridDimY = l.kernel.gridDimZ = 1;
    l.kernel.blockDimX = l.kernel.blockDimY = l.kernel.blockDimZ = 1;
    l.kernel_args[0] = &l.at;
    l.kernel_args[1] = &l.n_words;
    l.kernel_args[2] = &l.v;
    l.kernel.kernelParams = l.kernel_args;
    l.copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                             .srcHost = l.host,
                             .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                             .WidthInBytes = 4096,
                             .Height = 1,
                             .Depth = 1};
    l.set = (CUDA_MEMSET_NODE_PARAMS){.elementSize = 4, .width = 64, .height = 1};
    l.op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    l.batch = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = l.context, .count = 1, .paramArray = &l.op};
    l.any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    l.any.memcpy.copyCtx = l.context;
    l.linear.resType = CU_RESOURCE_TYPE_LINEAR;
    l.linear.res.linear.devPtr = l.at;
    l.linear.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    l.linear.res.linear.numChannels = 1;
    l.linear.res.linear.sizeInBytes = 65536;
    l.texels.flags = CU_TRSF_READ_AS_INTEGER;
    l.plane = (CUDA_ARRAY_DESCRIPTOR){
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    l.window.accessPolicyWindow.base_ptr = (void *)(uintptr_t)l.at;
    l.window.accessPolicyWindow.num_bytes = 65536;
    l.window.accessPolicyWindow.hitRatio = 1;
    l.window.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    l.window.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
}

/* The arguments of nodes name the arena's byte at `offset`. */
static void name(size_t offset)
{
    l.copy.dstDevice = l.set.dst = l.op.writeValue.address = l.at + offset;
    l.any.memcpy.copyParams = l.copy;
}

/* What a driver refuses here, the call behind it shows in both states alike. */
static void prepare(enum before before)
{
    if (before == TEXTURE)
        MAKE(cuTexObjectCreate, (&l.texture, &l.linear, &l.texels, NULL));
    if (before == REFERENCE || before == BOUND) {
        MAKE(cuTexRefCreate, (&l.reference));
        MAKE(cuTexRefSetFormat, (l.reference, CU_AD_FORMAT_UNSIGNED_INT32, 1));
    }
    if (before == BOUND)
        MAKE(cuTexRefSetAddress_v2, (&(size_t){0}, l.reference, l.at, 65536));
    if (before < GRAPH)
        return;
    MAKE(cuGraphCreate, (&l.graph, 0));
    if (before == COPY || before == COPY_EXEC)
        MAKE(cuGraphAddMemcpyNode, (&l.node, l.graph, NULL, 0, &l.copy, l.context));
    if (before == MEMSET || before == MEMSET_EXEC)
        MAKE(cuGraphAddMemsetNode, (&l.node, l.graph, NULL, 0, &l.set, l.context));
    if (before == BATCH || before == BATCH_EXEC)
        MAKE(cuGraphAddBatchMemOpNode, (&l.node, l.graph, NULL, 0, &l.batch));
    if (before == KERNEL || before == KERNEL_EXEC)
        MAKE(cuGraphAddKernelNode_v2, (&l.node, l.graph, NULL, 0, &l.kernel));
    if (before >= COPY_EXEC)
        driver.cuGraphInstantiateWithFlags(&l.exec, l.graph, 0);
}

/* --- the comparison -------------------------------------------------------------------------- */

static void make(const struct pointer_case *c, bool is_away, struct answer *a)
{
    memset(a, 0, sizeof *a);
    answer = a;
    map();
    name(0);
    prepare(c->before);
    name(65536);
    if (is_away)
        unmap();
    a->rc = c->call();
    DRIVER_CHECK(driver.cuCtxSynchronize());
    if (!is_away)
        unmap();
}

static bool is_gated(const char *symbol)
{
    for (size_t i = 0; i < sizeof gated / sizeof *gated; i++)
        if (!strcmp(gated[i], symbol))
            return true;
    return false;
}

int main(void)
{
    unsigned asked = 0, differ = 0, passed = 0;

    start();
    alarm(60);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer mapped, away;
        bool wakes = is_gated(cases[i].symbol);

        make(&cases[i], false, &mapped);
        make(&cases[i], true, &away);
        asked += mapped.rc != NOT_HERE;
        if (!memcmp(&mapped, &away, sizeof mapped))
            continue;
        differ += wakes;
        passed += !wakes;
        printf("%-36s  %d mapped, %d away%s\n", cases[i].symbol, (int)mapped.rc, (int)away.rc,
               wakes ? "" : ": not gated");
    }
    printf("of %u calls %u gated ones differ, %u passed ones\n", asked, differ, passed);
    return passed || !differ;
}
