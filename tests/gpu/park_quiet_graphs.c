/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Kinds of park_quiet.h that are graphs, also those that the GPU starts, and textures.
 */
#include "tests/gpu/park_quiet.h"

/* --- graphs ---------------------------------------------------------------------------------- */

static CUresult copy_from_source(struct lane *l, CUfunction f, unsigned part)
{
    CUdeviceptr to = lane_part(l, part), from = lane_source(l, part);
    uint64_t n_words = lane_words(l), ns = LATE_NS;

    /* `copy` has three parameters, kernel.late_copy four. */
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
    CUresult rc = quiet_spin(l->stream);

    rc = rc ? rc : driver.cuMemsetD32Async(lane_part(l, part), 0, lane_words(l), l->stream);
    rc = rc ? rc : copy_from_source(l, kernel.copy, part);
    return rc ? rc
              : driver.cuMemcpyDtoDAsync_v2(lane_part(l, part), lane_source(l, part),
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
    CUresult rc = quiet_set_source(l, part, v);

    return rc ? rc : driver.cuGraphLaunch(l->exec[part], l->stream);
}

static CUresult inner_nodes(struct lane *l, unsigned part)
{
    return copy_from_source(l, kernel.late_copy, part);
}

static CUresult start_inner(struct lane *l, unsigned part, uint32_t how)
{
    return driver.cuLaunchKernel(kernel.start_graph, 1, 1, 1, 32, 1, 1, 0, l->stream,
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
    if (!kernel.start_graph || !call.cuGraphUpload)
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
    CUdeviceptr to = lane_part(l, part), from = lane_source(l, part);
    CUgraphConditionalHandle handle;
    uint64_t n_words = lane_words(l);
    uint32_t turns = 4;
    CUgraph graph;
    CUgraphNode node;
    CUcontext context = NULL;
    CUgraphNodeParams loop = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUDA_KERNEL_NODE_PARAMS body = {.func = kernel.loop_fill,
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

    if (!kernel.loop_fill || !call.cuGraphAddNode_v2 || !call.cuGraphConditionalHandleCreate)
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

    if (!kernel.from_texture || !call.cuTexObjectCreate)
        return false;
    for (unsigned part = 0; part < PARTS; part++) {
        CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR};

        what.res.linear.devPtr = lane_source(l, part);
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
    uint64_t n_words = lane_words(l), ns = LATE_NS;
    CUresult rc = quiet_set_source(l, part, v);

    return rc ? rc
              : driver.cuLaunchKernel(kernel.from_texture, 1, 1, 1, 64, 1, 1, 0, l->stream,
                                      (void *[]){&at, &l->texture[part], &n_words, &ns}, NULL);
}

const struct kind graph_kinds[] = {
    {"graph", PART_SMALL, prepare_graph, submit_graph, false},
    {"graph with a loop", PART_SMALL, prepare_loop, submit_graph, false},
    {"device graph, forgotten", PART_SMALL, prepare_forget, submit_graph, false},
    {"device graph, tail", PART_SMALL, prepare_tail, submit_graph, false},
    {"device graph, sibling", PART_SMALL, prepare_sibling, submit_graph, false},
    {"texture", PART_SMALL, prepare_texture, submit_texture, false},
    {NULL, 0, NULL, NULL, false},
};
