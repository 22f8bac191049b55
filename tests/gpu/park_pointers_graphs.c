/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Cases of park_pointers.h with graphs: nodes that name an address, made, changed, looked at,
 * instantiated, updated, uploaded; and captures.
 */
#include "tests/gpu/park_pointers.h"

#include <dlfcn.h>
#include <string.h>

#define FUNCTIONS                                                                                  \
    FUNCTION(cuGraphCreate)                                                                        \
    FUNCTION(cuGraphClone)                                                                         \
    FUNCTION(cuGraphAddKernelNode_v2)                                                              \
    FUNCTION(cuGraphAddMemcpyNode)                                                                 \
    FUNCTION(cuGraphAddMemsetNode)                                                                 \
    FUNCTION(cuGraphAddBatchMemOpNode)                                                             \
    FUNCTION(cuGraphAddMemFreeNode)                                                                \
    FUNCTION(cuGraphAddNode_v2)                                                                    \
    FUNCTION(cuGraphMemcpyNodeSetParams)                                                           \
    FUNCTION(cuGraphMemsetNodeSetParams)                                                           \
    FUNCTION(cuGraphBatchMemOpNodeSetParams)                                                       \
    FUNCTION(cuGraphKernelNodeSetParams_v2)                                                        \
    FUNCTION(cuGraphNodeSetParams)                                                                 \
    FUNCTION(cuGraphMemcpyNodeGetParams)                                                           \
    FUNCTION(cuGraphMemsetNodeGetParams)                                                           \
    FUNCTION(cuGraphBatchMemOpNodeGetParams)                                                       \
    FUNCTION(cuGraphExecMemcpyNodeSetParams)                                                       \
    FUNCTION(cuGraphExecMemsetNodeSetParams)                                                       \
    FUNCTION(cuGraphExecBatchMemOpNodeSetParams)                                                   \
    FUNCTION(cuGraphExecKernelNodeSetParams_v2)                                                    \
    FUNCTION(cuGraphExecNodeSetParams)                                                             \
    FUNCTION(cuGraphExecUpdate_v2)                                                                 \
    FUNCTION(cuGraphUpload)                                                                        \
    FUNCTION(cuGraphDebugDotPrint)

#define FUNCTION(symbol) __typeof__(symbol) *symbol;
static struct {
    FUNCTIONS
} call;
#undef FUNCTION

#define CALL(symbol, ...) (call.symbol ? call.symbol(__VA_ARGS__) : NOT_HERE)

void graph_functions(void)
{
#define FUNCTION(symbol) *(void **)&call.symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
}

/* --- what nodes are made of ------------------------------------------------------------------ */

static CUDA_MEMCPY3D copy_params(struct look *l, size_t offset)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = l->host,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = l->at + offset,
                           .WidthInBytes = 4096,
                           .Height = 1,
                           .Depth = 1};
}

static CUDA_MEMSET_NODE_PARAMS memset_params(struct look *l, size_t offset)
{
    return (CUDA_MEMSET_NODE_PARAMS){
        .dst = l->at + offset, .value = 1, .elementSize = 4, .width = 64, .height = 1};
}

static CUstreamBatchMemOpParams op_params(struct look *l, size_t offset)
{
    return (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                                     .address = l->at + offset,
                                                     .value = 7}};
}

static CUDA_BATCH_MEM_OP_NODE_PARAMS batch_params(struct look *l, CUstreamBatchMemOpParams *op)
{
    return (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = l->context, .count = 1, .paramArray = op};
}

static CUgraphNodeParams any_copy(struct look *l, size_t offset)
{
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};

    any.memcpy.copyCtx = l->context;
    any.memcpy.copyParams = copy_params(l, offset);
    return any;
}

static CUgraphNodeParams any_memset(struct look *l, size_t offset)
{
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET};

    any.memset.dst = l->at + offset;
    any.memset.value = 1;
    any.memset.elementSize = 4;
    any.memset.width = 64;
    any.memset.height = 1;
    any.memset.ctx = l->context;
    return any;
}

/* The kernel's arguments, which live as long as the node is made. */
struct kernel_args {
    CUdeviceptr at;
    uint64_t n_words;
    uint32_t v;
    void *all[3];
};

static CUDA_KERNEL_NODE_PARAMS kernel_params(struct look *l, struct kernel_args *a)
{
    *a = (struct kernel_args){.at = l->at, .v = 1};
    a->all[0] = &a->at;
    a->all[1] = &a->n_words;
    a->all[2] = &a->v;
    return (CUDA_KERNEL_NODE_PARAMS){.func = l->fill,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = a->all};
}

/* --- nodes added ----------------------------------------------------------------------------- */

static void before_graph(struct look *l)
{
    CALL(cuGraphCreate, &l->graph, 0);
}

static CUresult add_copy(struct look *l)
{
    CUDA_MEMCPY3D c = copy_params(l, 0);

    return CALL(cuGraphAddMemcpyNode, &l->node, l->graph, NULL, 0, &c, l->context);
}

static CUresult add_memset(struct look *l)
{
    CUDA_MEMSET_NODE_PARAMS m = memset_params(l, 0);

    return CALL(cuGraphAddMemsetNode, &l->node, l->graph, NULL, 0, &m, l->context);
}

static CUresult add_batch(struct look *l)
{
    CUstreamBatchMemOpParams op = op_params(l, 0);
    CUDA_BATCH_MEM_OP_NODE_PARAMS b = batch_params(l, &op);

    return CALL(cuGraphAddBatchMemOpNode, &l->node, l->graph, NULL, 0, &b);
}

static CUresult add_kernel(struct look *l)
{
    struct kernel_args a;
    CUDA_KERNEL_NODE_PARAMS k = kernel_params(l, &a);

    return CALL(cuGraphAddKernelNode_v2, &l->node, l->graph, NULL, 0, &k);
}

static CUresult add_free(struct look *l)
{
    return CALL(cuGraphAddMemFreeNode, &l->node, l->graph, NULL, 0, l->at);
}

static CUresult add_any_copy(struct look *l)
{
    CUgraphNodeParams any = any_copy(l, 0);

    return CALL(cuGraphAddNode_v2, &l->node, l->graph, NULL, NULL, 0, &any);
}

static CUresult add_any_memset(struct look *l)
{
    CUgraphNodeParams any = any_memset(l, 0);

    return CALL(cuGraphAddNode_v2, &l->node, l->graph, NULL, NULL, 0, &any);
}

/* --- nodes changed and looked at ------------------------------------------------------------- */

static void before_copy(struct look *l)
{
    before_graph(l);
    add_copy(l);
}

static void before_memset(struct look *l)
{
    before_graph(l);
    add_memset(l);
}

static void before_batch(struct look *l)
{
    before_graph(l);
    add_batch(l);
}

static void before_kernel(struct look *l)
{
    before_graph(l);
    add_kernel(l);
}

static CUresult set_copy(struct look *l)
{
    CUDA_MEMCPY3D c = copy_params(l, 65536);

    return CALL(cuGraphMemcpyNodeSetParams, l->node, &c);
}

static CUresult set_memset(struct look *l)
{
    CUDA_MEMSET_NODE_PARAMS m = memset_params(l, 65536);

    return CALL(cuGraphMemsetNodeSetParams, l->node, &m);
}

static CUresult set_batch(struct look *l)
{
    CUstreamBatchMemOpParams op = op_params(l, 65536);
    CUDA_BATCH_MEM_OP_NODE_PARAMS b = batch_params(l, &op);

    return CALL(cuGraphBatchMemOpNodeSetParams, l->node, &b);
}

static CUresult set_kernel(struct look *l)
{
    struct kernel_args a;
    CUDA_KERNEL_NODE_PARAMS k = kernel_params(l, &a);

    return CALL(cuGraphKernelNodeSetParams_v2, l->node, &k);
}

static CUresult set_any_copy(struct look *l)
{
    CUgraphNodeParams any = any_copy(l, 65536);

    return CALL(cuGraphNodeSetParams, l->node, &any);
}

static CUresult set_any_memset(struct look *l)
{
    CUgraphNodeParams any = any_memset(l, 65536);

    return CALL(cuGraphNodeSetParams, l->node, &any);
}

static CUresult get_copy(struct look *l)
{
    CUDA_MEMCPY3D c = {0};
    CUresult rc = CALL(cuGraphMemcpyNodeGetParams, l->node, &c);

    look_say_address(l, "to", c.dstDevice);
    return rc;
}

static CUresult get_memset(struct look *l)
{
    CUDA_MEMSET_NODE_PARAMS m = {0};
    CUresult rc = CALL(cuGraphMemsetNodeGetParams, l->node, &m);

    look_say_address(l, "to", m.dst);
    return rc;
}

static CUresult get_batch(struct look *l)
{
    CUDA_BATCH_MEM_OP_NODE_PARAMS b = {0};
    CUresult rc = CALL(cuGraphBatchMemOpNodeGetParams, l->node, &b);

    look_say(l, "%u", b.count);
    return rc;
}

/* --- instantiated graphs --------------------------------------------------------------------- */

static void instantiate(struct look *l)
{
    driver.cuGraphInstantiateWithFlags(&l->exec, l->graph, 0);
}

static void before_copy_exec(struct look *l)
{
    before_copy(l);
    instantiate(l);
}

static void before_memset_exec(struct look *l)
{
    before_memset(l);
    instantiate(l);
}

static void before_batch_exec(struct look *l)
{
    before_batch(l);
    instantiate(l);
}

static void before_kernel_exec(struct look *l)
{
    before_kernel(l);
    instantiate(l);
}

static CUresult exec_set_copy(struct look *l)
{
    CUDA_MEMCPY3D c = copy_params(l, 65536);

    return CALL(cuGraphExecMemcpyNodeSetParams, l->exec, l->node, &c, l->context);
}

static CUresult exec_set_memset(struct look *l)
{
    CUDA_MEMSET_NODE_PARAMS m = memset_params(l, 65536);

    return CALL(cuGraphExecMemsetNodeSetParams, l->exec, l->node, &m, l->context);
}

static CUresult exec_set_batch(struct look *l)
{
    CUstreamBatchMemOpParams op = op_params(l, 65536);
    CUDA_BATCH_MEM_OP_NODE_PARAMS b = batch_params(l, &op);

    return CALL(cuGraphExecBatchMemOpNodeSetParams, l->exec, l->node, &b);
}

static CUresult exec_set_kernel(struct look *l)
{
    struct kernel_args a;
    CUDA_KERNEL_NODE_PARAMS k = kernel_params(l, &a);

    return CALL(cuGraphExecKernelNodeSetParams_v2, l->exec, l->node, &k);
}

static CUresult exec_set_any_copy(struct look *l)
{
    CUgraphNodeParams any = any_copy(l, 65536);

    return CALL(cuGraphExecNodeSetParams, l->exec, l->node, &any);
}

static CUresult exec_set_any_memset(struct look *l)
{
    CUgraphNodeParams any = any_memset(l, 65536);

    return CALL(cuGraphExecNodeSetParams, l->exec, l->node, &any);
}

static CUresult instantiate_copy(struct look *l)
{
    return driver.cuGraphInstantiateWithFlags(&l->exec, l->graph, 0);
}

/* The device's copy of the graph is made too. */
static CUresult instantiate_upload(struct look *l)
{
    return driver.cuGraphInstantiateWithFlags(&l->exec, l->graph,
                                              CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
}

static CUresult clone(struct look *l)
{
    return CALL(cuGraphClone, &l->other, l->graph);
}

static void before_update(struct look *l)
{
    before_copy_exec(l);
    CALL(cuGraphClone, &l->other, l->graph);
}

static CUresult update(struct look *l)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult rc = CALL(cuGraphExecUpdate_v2, l->exec, l->other, &info);

    look_say(l, "%d", (int)info.result);
    return rc;
}

static CUresult upload(struct look *l)
{
    return CALL(cuGraphUpload, l->exec, l->stream);
}

static CUresult launch(struct look *l)
{
    return driver.cuGraphLaunch(l->exec, l->stream);
}

static CUresult destroy_exec(struct look *l)
{
    return driver.cuGraphExecDestroy(l->exec);
}

static CUresult destroy(struct look *l)
{
    return driver.cuGraphDestroy(l->graph);
}

static CUresult print_graph(struct look *l)
{
    return CALL(cuGraphDebugDotPrint, l->graph, "/dev/null", 1);
}

/* --- captures -------------------------------------------------------------------------------- */

/* What is captured may be refused, and then the capture ends with an error. */
static CUresult capture(struct look *l, CUresult rc)
{
    CUresult end = driver.cuStreamEndCapture(l->stream, &l->graph);

    look_say(l, "end %d", (int)end);
    return rc;
}

static void begin(struct look *l)
{
    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUresult capture_memset(struct look *l)
{
    begin(l);
    return capture(l, driver.cuMemsetD32Async(l->at, 1, 64, l->stream));
}

static CUresult capture_copy(struct look *l)
{
    begin(l);
    return capture(l, driver.cuMemcpyHtoDAsync_v2(l->at, l->host, 4096, l->stream));
}

static CUresult capture_between(struct look *l)
{
    begin(l);
    return capture(l, driver.cuMemcpyDtoDAsync_v2(l->at, l->at + 65536, 4096, l->stream));
}

static CUresult capture_kernel(struct look *l)
{
    uint64_t n_words = 0;
    uint32_t v = 1;

    begin(l);
    return capture(l, driver.cuLaunchKernel(l->fill, 1, 1, 1, 32, 1, 1, 0, l->stream,
                                            (void *[]){&l->at, &n_words, &v}, NULL));
}

const struct pointer_case graph_cases[] = {
    {"cuGraphAddMemcpyNode", before_graph, add_copy},
    {"cuGraphAddMemsetNode", before_graph, add_memset},
    {"cuGraphAddBatchMemOpNode", before_graph, add_batch},
    {"cuGraphAddKernelNode", before_graph, add_kernel},
    {"cuGraphAddMemFreeNode", before_graph, add_free},
    {"cuGraphAddNode, copy", before_graph, add_any_copy},
    {"cuGraphAddNode, memset", before_graph, add_any_memset},
    {"cuGraphMemcpyNodeSetParams", before_copy, set_copy},
    {"cuGraphMemsetNodeSetParams", before_memset, set_memset},
    {"cuGraphBatchMemOpNodeSetParams", before_batch, set_batch},
    {"cuGraphKernelNodeSetParams", before_kernel, set_kernel},
    {"cuGraphNodeSetParams, copy", before_copy, set_any_copy},
    {"cuGraphNodeSetParams, memset", before_memset, set_any_memset},
    {"cuGraphMemcpyNodeGetParams", before_copy, get_copy},
    {"cuGraphMemsetNodeGetParams", before_memset, get_memset},
    {"cuGraphBatchMemOpNodeGetParams", before_batch, get_batch},
    {"cuGraphExecMemcpyNodeSetParams", before_copy_exec, exec_set_copy},
    {"cuGraphExecMemsetNodeSetParams", before_memset_exec, exec_set_memset},
    {"cuGraphExecBatchMemOpNodeSetParams", before_batch_exec, exec_set_batch},
    {"cuGraphExecKernelNodeSetParams", before_kernel_exec, exec_set_kernel},
    {"cuGraphExecNodeSetParams, copy", before_copy_exec, exec_set_any_copy},
    {"cuGraphExecNodeSetParams, memset", before_memset_exec, exec_set_any_memset},
    {"cuGraphInstantiate, copy", before_copy, instantiate_copy},
    {"cuGraphInstantiate, memset", before_memset, instantiate_copy},
    {"cuGraphInstantiate, batch", before_batch, instantiate_copy},
    {"cuGraphInstantiate, kernel", before_kernel, instantiate_copy},
    {"cuGraphInstantiate, device launch", before_kernel, instantiate_upload},
    {"cuGraphClone", before_copy, clone},
    {"cuGraphExecUpdate", before_update, update},
    {"cuGraphUpload", before_copy_exec, upload},
    {"cuGraphLaunch, copy", before_copy_exec, launch},
    {"cuGraphExecDestroy", before_copy_exec, destroy_exec},
    {"cuGraphDestroy", before_copy, destroy},
    {"cuGraphDebugDotPrint", before_copy, print_graph},
    {"memset, captured", NULL, capture_memset},
    {"upload, captured", NULL, capture_copy},
    {"copy on the device, captured", NULL, capture_between},
    {"launch, captured", NULL, capture_kernel},
    {NULL, NULL, NULL},
};
