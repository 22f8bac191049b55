/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The kinds of GPU work of park_quiet.h. Functions that only newer drivers have are looked up; a
 * kind that lacks one is not possible. Threads use their own lanes; nothing else changes after
 * kinds_load.
 */
#include "tests/gpu/park_quiet.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define SMALL (4 * KIB)
#define LARGE (256 * KIB)

/* How long a kernel is busy before it writes. */
#define LATE_NS UINT64_C(20000)

#define FUNCTIONS                                                                                  \
    FUNCTION(cuStreamWaitEvent)                                                                    \
    FUNCTION(cuLaunchHostFunc)                                                                     \
    FUNCTION(cuLaunchKernelEx)                                                                     \
    FUNCTION(cuMemcpy2DAsync_v2)                                                                   \
    FUNCTION(cuMemcpyBatchAsync_v2)                                                                \
    FUNCTION(cuStreamWriteValue32_v2)                                                              \
    FUNCTION(cuStreamWaitValue32_v2)                                                               \
    FUNCTION(cuStreamBatchMemOp_v2)                                                                \
    FUNCTION(cuModuleLoad)                                                                         \
    FUNCTION(cuGraphCreate)                                                                        \
    FUNCTION(cuGraphAddKernelNode_v2)                                                              \
    FUNCTION(cuGraphAddNode_v2)                                                                    \
    FUNCTION(cuGraphConditionalHandleCreate)                                                       \
    FUNCTION(cuGraphUpload)                                                                        \
    FUNCTION(cuTexObjectCreate)                                                                    \
    FUNCTION(cuDeviceGetDevResource)                                                               \
    FUNCTION(cuDevSmResourceSplitByCount)                                                          \
    FUNCTION(cuDevResourceGenerateDesc)                                                            \
    FUNCTION(cuGreenCtxCreate)                                                                     \
    FUNCTION(cuGreenCtxStreamCreate)

#define FUNCTION(symbol) __typeof__(symbol) *symbol;
static struct {
    FUNCTIONS
} call;
#undef FUNCTION

/* Kernels of kernels.h, and of park_quiet.cu (NULL: not loaded). */
static CUfunction fill_late, copy, spin;
static CUfunction child_forget, child_tail, late_copy, start_graph, from_texture, loop_fill;

void kinds_load(const char *cubin)
{
    CUmodule module;

#define FUNCTION(symbol) *(void **)&call.symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill_late, module, "spin_fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&copy, module, "copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&spin, module, "spin"));
    if (!cubin || !call.cuModuleLoad)
        return;
    DRIVER_CHECK(call.cuModuleLoad(&module, cubin));
    DRIVER_CHECK(driver.cuModuleGetFunction(&child_forget, module, "child_forget"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&child_tail, module, "child_tail"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&late_copy, module, "late_copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&start_graph, module, "start_graph"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&from_texture, module, "from_texture"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&loop_fill, module, "loop_fill"));
}

CUdeviceptr lane_part(const struct lane *l, unsigned part)
{
    return l->at + part * l->kind->part_bytes;
}

static CUdeviceptr source_part(const struct lane *l, unsigned part)
{
    return l->source + part * l->kind->part_bytes;
}

static uint32_t *pinned_part(const struct lane *l, unsigned part)
{
    return l->pinned + part * l->kind->part_bytes / 4;
}

static uint64_t words(const struct lane *l)
{
    return l->kind->part_bytes / 4;
}

static void fill_host(uint32_t *at, uint64_t n_words, uint32_t v)
{
    for (uint64_t i = 0; i < n_words; i++)
        at[i] = v;
}

/* --- kernels --------------------------------------------------------------------------------- */

static CUresult fill_on(CUstream stream, CUdeviceptr at, uint64_t n_words, uint32_t v)
{
    uint64_t ns = LATE_NS;

    return driver.cuLaunchKernel(fill_late, 1, 1, 1, 64, 1, 1, 0, stream,
                                 (void *[]){&at, &n_words, &v, &ns}, NULL);
}

static CUresult spin_on(CUstream stream)
{
    uint64_t ns = LATE_NS;

    return driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&ns}, NULL);
}

static CUresult submit_kernel(struct lane *l, unsigned part, uint32_t v)
{
    return fill_on(l->stream, lane_part(l, part), words(l), v);
}

static CUresult submit_legacy(struct lane *l, unsigned part, uint32_t v)
{
    return fill_on(CU_STREAM_LEGACY, lane_part(l, part), words(l), v);
}

static CUresult submit_per_thread(struct lane *l, unsigned part, uint32_t v)
{
    return fill_on(CU_STREAM_PER_THREAD, lane_part(l, part), words(l), v);
}

static CUresult submit_destroyed(struct lane *l, unsigned part, uint32_t v)
{
    CUstream stream;
    CUresult rc = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), end;

    if (rc)
        return rc;
    rc = fill_on(stream, lane_part(l, part), words(l), v);
    end = driver.cuStreamDestroy_v2(stream);
    return rc ? rc : end;
}

static bool has_launch_ex(struct lane *l)
{
    (void)l;
    return call.cuLaunchKernelEx;
}

/* The second kernel may start before the first one has ended. */
static CUresult submit_early(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = words(l), ns = LATE_NS;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 64,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = l->stream,
                             .attrs = &early,
                             .numAttrs = 1};
    CUresult rc = spin_on(l->stream);

    return rc ? rc
              : call.cuLaunchKernelEx(&config, fill_late, (void *[]){&at, &n_words, &v, &ns}, NULL);
}

static bool has_wait_event(struct lane *l)
{
    (void)l;
    return call.cuStreamWaitEvent;
}

static CUresult submit_other_stream(struct lane *l, unsigned part, uint32_t v)
{
    CUevent event;
    CUresult rc = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    rc = rc ? rc : spin_on(l->other);
    rc = rc ? rc : driver.cuEventRecord(event, l->other);
    rc = rc ? rc : call.cuStreamWaitEvent(l->stream, event, 0);
    rc = rc ? rc : fill_on(l->stream, lane_part(l, part), words(l), v);
    return rc ? rc : driver.cuEventDestroy_v2(event);
}

static bool prepare_green(struct lane *l)
{
    CUdevResource all, some;
    CUdevResourceDesc description;
    unsigned count = 1;

    return call.cuGreenCtxStreamCreate &&
           !call.cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) &&
           !call.cuDevSmResourceSplitByCount(&some, &count, &all, NULL, 0, 8) &&
           !call.cuDevResourceGenerateDesc(&description, &some, 1) &&
           !call.cuGreenCtxCreate(&l->green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) &&
           !call.cuGreenCtxStreamCreate(&l->stream, l->green, CU_STREAM_NON_BLOCKING, 0);
}

static bool has_cubin(struct lane *l)
{
    (void)l;
    return child_forget;
}

static CUresult child(CUfunction f, struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = words(l), ns = LATE_NS;

    return driver.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                 (void *[]){&at, &n_words, &v, &ns}, NULL);
}

static CUresult submit_child_forget(struct lane *l, unsigned part, uint32_t v)
{
    return child(child_forget, l, part, v);
}

static CUresult submit_child_tail(struct lane *l, unsigned part, uint32_t v)
{
    return child(child_tail, l, part, v);
}

/* --- sets and copies ------------------------------------------------------------------------- */

static CUresult submit_memset(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32Async(lane_part(l, part), v, words(l), l->stream);
}

static CUresult submit_memset_sync(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32_v2(lane_part(l, part), v, words(l));
}

static CUresult submit_pageable(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(l->pageable, words(l), v);
    return driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), l->pageable, l->kind->part_bytes,
                                       l->stream);
}

static CUresult submit_pageable_sync(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(l->pageable, words(l), v);
    return driver.cuMemcpyHtoD_v2(lane_part(l, part), l->pageable, l->kind->part_bytes);
}

static CUresult submit_pinned(struct lane *l, unsigned part, uint32_t v)
{
    fill_host(pinned_part(l, part), words(l), v);
    return driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), pinned_part(l, part),
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
                       .srcHost = pinned_part(l, part),
                       .srcPitch = 256,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = lane_part(l, part),
                       .dstPitch = 256,
                       .WidthInBytes = 256,
                       .Height = l->kind->part_bytes / 256};

    fill_host(pinned_part(l, part), words(l), v);
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
    CUdeviceptr to = lane_part(l, part), from = (uintptr_t)pinned_part(l, part);
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t bytes = l->kind->part_bytes, first = 0;

    fill_host(pinned_part(l, part), words(l), v);
    return call.cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &attributes, &first, 1, l->stream);
}
#endif

static CUresult set_source(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32Async(source_part(l, part), v, words(l), l->stream);
}

static CUresult submit_between(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = set_source(l, part, v);

    return rc ? rc
              : driver.cuMemcpyDtoDAsync_v2(lane_part(l, part), source_part(l, part),
                                            l->kind->part_bytes, l->stream);
}

static CUresult submit_download(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = fill_on(l->stream, lane_part(l, part), words(l), v);

    return rc ? rc
              : driver.cuMemcpyDtoHAsync_v2(pinned_part(l, part), lane_part(l, part),
                                            l->kind->part_bytes, l->stream);
}

static CUresult submit_stream_ordered(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr block = 0;
    CUresult rc = driver.cuMemAllocAsync(&block, l->kind->part_bytes, l->stream);

    rc = rc ? rc : driver.cuMemsetD32Async(block, v, words(l), l->stream);
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
    *f = (struct host_fill){pinned_part(l, part), words(l), v};
    rc = call.cuLaunchHostFunc(l->stream, host_fill, f);
    return rc ? rc
              : driver.cuMemcpyHtoDAsync_v2(lane_part(l, part), pinned_part(l, part),
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
    CUresult rc = spin_on(l->stream);

    for (uint64_t i = 0; i < words(l) && !rc; i++)
        rc = call.cuStreamWriteValue32_v2(l->stream, lane_part(l, part) + 4 * i, v, 0);
    return rc;
}

static CUresult submit_batch_values(struct lane *l, unsigned part, uint32_t v)
{
    CUstreamBatchMemOpParams ops[64];
    unsigned count = (unsigned)words(l) < 64 ? (unsigned)words(l) : 64;
    CUresult rc = spin_on(l->stream);

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
    CUdeviceptr flag = source_part(l, part);
    CUresult rc = spin_on(l->other);

    rc = rc ? rc : call.cuStreamWriteValue32_v2(l->other, flag, v, 0);
    rc = rc ? rc : call.cuStreamWaitValue32_v2(l->stream, flag, v, CU_STREAM_WAIT_VALUE_GEQ);
    return rc ? rc : driver.cuMemsetD32Async(lane_part(l, part), v, words(l), l->stream);
}

/* --- graphs ---------------------------------------------------------------------------------- */

static CUresult copy_from_source(struct lane *l, CUfunction f, unsigned part)
{
    CUdeviceptr to = lane_part(l, part), from = source_part(l, part);
    uint64_t n_words = words(l), ns = LATE_NS;

    /* `copy` has three parameters, late_copy four. */
    return driver.cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, l->stream,
                                 (void *[]){&to, &from, &n_words, &ns}, NULL);
}

/* Everything that the function submits to the lane's stream becomes a graph. */
static bool captured(struct lane *l, unsigned part, unsigned flags, CUgraphExec *exec,
                     CUresult (*submit)(struct lane *l, unsigned part))
{
    CUgraph graph;
    CUresult rc = driver.cuStreamBeginCapture_v2(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult end;

    if (rc)
        return false;
    rc = submit(l, part);
    end = driver.cuStreamEndCapture(l->stream, &graph);
    return !rc && !end && !driver.cuGraphInstantiateWithFlags(exec, graph, flags) &&
           !driver.cuGraphDestroy(graph);
}

static CUresult plain_nodes(struct lane *l, unsigned part)
{
    CUresult rc = spin_on(l->stream);

    rc = rc ? rc : driver.cuMemsetD32Async(lane_part(l, part), 0, words(l), l->stream);
    rc = rc ? rc : copy_from_source(l, copy, part);
    return rc ? rc
              : driver.cuMemcpyDtoDAsync_v2(lane_part(l, part), source_part(l, part),
                                            l->kind->part_bytes / 2, l->stream);
}

static bool prepare_graph(struct lane *l)
{
    for (unsigned part = 0; part < PARTS; part++)
        if (!captured(l, part, 0, &l->exec[part], plain_nodes))
            return false;
    return true;
}

static CUresult submit_graph(struct lane *l, unsigned part, uint32_t v)
{
    CUresult rc = set_source(l, part, v);

    return rc ? rc : driver.cuGraphLaunch(l->exec[part], l->stream);
}

static CUresult inner_nodes(struct lane *l, unsigned part)
{
    return copy_from_source(l, late_copy, part);
}

static CUresult start_inner(struct lane *l, unsigned part, uint32_t how)
{
    return driver.cuLaunchKernel(start_graph, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                 (void *[]){&l->inner[part], &how}, NULL);
}

static CUresult start_forget(struct lane *l, unsigned part)
{
    return start_inner(l, part, 0);
}

static CUresult start_tail(struct lane *l, unsigned part)
{
    return start_inner(l, part, 1);
}

static CUresult start_sibling(struct lane *l, unsigned part)
{
    return start_inner(l, part, 2);
}

/* A graph that the GPU starts, and the graph whose kernel does so. */
static bool prepare_device_graph(struct lane *l, CUresult (*start)(struct lane *l, unsigned part))
{
    if (!start_graph || !call.cuGraphUpload)
        return false;
    for (unsigned part = 0; part < PARTS; part++)
        if (!captured(l, part, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, &l->inner[part],
                      inner_nodes) ||
            call.cuGraphUpload(l->inner[part], l->stream) ||
            driver.cuStreamSynchronize(l->stream) || !captured(l, part, 0, &l->exec[part], start))
            return false;
    return true;
}

static bool prepare_forget(struct lane *l)
{
    return prepare_device_graph(l, start_forget);
}

static bool prepare_tail(struct lane *l)
{
    return prepare_device_graph(l, start_tail);
}

static bool prepare_sibling(struct lane *l)
{
    return prepare_device_graph(l, start_sibling);
}

/* A graph that repeats its body until a kernel of the body ends that. */
static bool loop_graph(struct lane *l, unsigned part, CUdeviceptr turn)
{
    CUdeviceptr to = lane_part(l, part), from = source_part(l, part);
    CUgraphConditionalHandle handle;
    uint64_t n_words = words(l);
    uint32_t turns = 4;
    CUgraph graph;
    CUgraphNode node;
    CUcontext context = NULL;
    CUgraphNodeParams loop = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUDA_KERNEL_NODE_PARAMS body = {.func = loop_fill,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 64,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams =
                                        (void *[]){&to, &from, &n_words, &turn, &turns, &handle}};

    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&context, 0));
    if (call.cuGraphCreate(&graph, 0) ||
        call.cuGraphConditionalHandleCreate(&handle, graph, context, 1,
                                            CU_GRAPH_COND_ASSIGN_DEFAULT))
        return false;
    loop.conditional.handle = handle;
    loop.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    loop.conditional.size = 1;
    loop.conditional.ctx = context;
    return !call.cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &loop) &&
           !call.cuGraphAddKernelNode_v2(&node, loop.conditional.phGraph_out[0], NULL, 0, &body) &&
           !driver.cuGraphInstantiateWithFlags(&l->exec[part], graph, 0);
}

static bool prepare_loop(struct lane *l)
{
    CUdeviceptr turns;

    if (!loop_fill || !call.cuGraphAddNode_v2 || !call.cuGraphConditionalHandleCreate)
        return false;
    DRIVER_CHECK(driver.cuMemAlloc_v2(&turns, PARTS * sizeof(uint32_t)));
    DRIVER_CHECK(driver.cuMemsetD32_v2(turns, 0, PARTS));
    for (unsigned part = 0; part < PARTS; part++)
        if (!loop_graph(l, part, turns + part * sizeof(uint32_t)))
            return false;
    return true;
}

/* --- textures -------------------------------------------------------------------------------- */

static bool prepare_texture(struct lane *l)
{
    CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};

    if (!from_texture || !call.cuTexObjectCreate)
        return false;
    for (unsigned part = 0; part < PARTS; part++) {
        CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR};

        what.res.linear.devPtr = source_part(l, part);
        what.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
        what.res.linear.numChannels = 1;
        what.res.linear.sizeInBytes = l->kind->part_bytes;
        if (call.cuTexObjectCreate(&l->texture[part], &what, &how, NULL))
            return false;
    }
    return true;
}

static CUresult submit_texture(struct lane *l, unsigned part, uint32_t v)
{
    CUdeviceptr at = lane_part(l, part);
    uint64_t n_words = words(l), ns = LATE_NS;
    CUresult rc = set_source(l, part, v);

    return rc ? rc
              : driver.cuLaunchKernel(from_texture, 1, 1, 1, 64, 1, 1, 0, l->stream,
                                      (void *[]){&at, &l->texture[part], &n_words, &ns}, NULL);
}

const struct kind kinds[] = {
    {"kernel", SMALL, NULL, submit_kernel, false},
    {"kernel, legacy stream", SMALL, NULL, submit_legacy, false},
    {"kernel, per-thread stream", SMALL, NULL, submit_per_thread, false},
    {"kernel, stream destroyed", SMALL, NULL, submit_destroyed, false},
    {"kernel, early launch", SMALL, has_launch_ex, submit_early, false},
    {"kernel behind another stream", SMALL, has_wait_event, submit_other_stream, false},
    {"kernel, green context", SMALL, prepare_green, submit_kernel, false},
    {"kernel started by a kernel", SMALL, has_cubin, submit_child_forget, false},
    {"kernel in a kernel's tail", SMALL, has_cubin, submit_child_tail, false},
    {"memset", SMALL, NULL, submit_memset, false},
    {"memset, synchronous", SMALL, NULL, submit_memset_sync, false},
    {"pageable upload, 4 KiB", SMALL, NULL, submit_pageable, false},
    {"pageable upload, 256 KiB", LARGE, NULL, submit_pageable, false},
    {"pageable upload, synchronous", LARGE, NULL, submit_pageable_sync, false},
    {"pinned upload", LARGE, NULL, submit_pinned, false},
    {"2D upload", SMALL, has_2d, submit_2d, false},
#if CUDA_VERSION >= 13000
    {"batch of copies", SMALL, has_batch, submit_batch, false},
#endif
    {"copy on the device", SMALL, NULL, submit_between, false},
    {"download", SMALL, NULL, submit_download, true},
    {"stream-ordered memory", SMALL, NULL, submit_stream_ordered, false},
    {"host function, then upload", SMALL, has_host_functions, submit_host_function, false},
    {"stream writes", 64, has_stream_values, submit_write_value, false},
    {"batch of stream writes", 64, has_stream_values, submit_batch_values, false},
    {"stream waits for a value", SMALL, has_stream_values, submit_wait_value, false},
    {"graph", SMALL, prepare_graph, submit_graph, false},
    {"graph with a loop", SMALL, prepare_loop, submit_graph, false},
    {"device graph, forgotten", SMALL, prepare_forget, submit_graph, false},
    {"device graph, tail", SMALL, prepare_tail, submit_graph, false},
    {"device graph, sibling", SMALL, prepare_sibling, submit_graph, false},
    {"texture", SMALL, prepare_texture, submit_texture, false},
};
const size_t num_kinds = sizeof kinds / sizeof *kinds;
