/* SPDX-License-Identifier: BSD-2-Clause */
/* Nodes that the program adds to a graph itself, and questions about nodes. */
#include "tests/sim/api.h"
#include "tests/sim/copy.h"
#include "tests/sim/graph.h"
#include "tests/sim/launch.h"
#include "tests/sim/thread.h"

/* Adds the node; `before` has to be nodes of the graph. */
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                    const struct command *command)
{
    if (out == NULL || !graph_valid(graph) || (count > 0 && before == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!graph_has(graph, before[i]))
            return CUDA_ERROR_INVALID_VALUE;
    *out = graph_add(graph, command, before, count);
    return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct command command;
    if (params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const unsigned shape[] = {params->gridDimX,  params->gridDimY,  params->gridDimZ,
                              params->blockDimX, params->blockDimY, params->blockDimZ};
    CUcontext context = params->ctx != NULL ? params->ctx : thread_current();
    CUfunction function = params->func != NULL ? params->func : (CUfunction)params->kern;
    CUresult rc =
        launch_command(&command, context, function, shape, params->kernelParams, params->extra);
    return rc == CUDA_SUCCESS ? add(out, graph, before, count, &command) : rc;
}

static CUresult add_copy(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_MEMCPY3D *params)
{
    struct command command;
    CUresult rc = copy_command(&command, params);
    return rc == CUDA_SUCCESS ? add(out, graph, before, count, &command) : rc;
}

static CUresult add_set(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                        const CUDA_MEMSET_NODE_PARAMS *params)
{
    if (params == NULL ||
        (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct command command = {.kind = COMMAND_SET,
                              .set = {params->dst, params->pitch, params->width, params->height,
                                      params->elementSize, params->value}};
    return add(out, graph, before, count, &command);
}

static CUresult add_host(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_HOST_NODE_PARAMS *params)
{
    if (params == NULL || params->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct command command = {.kind = COMMAND_HOST_FUNCTION,
                              .host = {params->fn, params->userData}};
    return add(out, graph, before, count, &command);
}

static CUresult add_empty(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count)
{
    return add(out, graph, before, count, &(struct command){.kind = COMMAND_MARKER});
}

static CUresult add_child(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                          CUgraph child)
{
    if (!graph_valid(child))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = add_empty(out, graph, before, count);
    if (rc == CUDA_SUCCESS)
        (*out)->child = graph_clone(child);
    return rc;
}

static CUresult get_type(CUgraphNode node, CUgraphNodeType *out)
{
    if (node == NULL || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (node->command.kind) {
    case COMMAND_KERNEL:
        *out = CU_GRAPH_NODE_TYPE_KERNEL;
        break;
    case COMMAND_COPY:
        *out = CU_GRAPH_NODE_TYPE_MEMCPY;
        break;
    case COMMAND_SET:
        *out = CU_GRAPH_NODE_TYPE_MEMSET;
        break;
    case COMMAND_HOST_FUNCTION:
    case COMMAND_CALLBACK:
        *out = CU_GRAPH_NODE_TYPE_HOST;
        break;
    case COMMAND_WAIT_VALUE:
    case COMMAND_WRITE_VALUE:
        *out = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
        break;
    case COMMAND_POOL_FREE:
        *out = CU_GRAPH_NODE_TYPE_MEM_FREE;
        break;
    case COMMAND_MARKER:
        *out = node->child != NULL ? CU_GRAPH_NODE_TYPE_GRAPH : CU_GRAPH_NODE_TYPE_EMPTY;
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult get_before(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    if (node == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; out != NULL && i < *count; i++)
        out[i] = i < node->before_count ? node->before[i] : NULL;
    if (out == NULL || *count > node->before_count)
        *count = node->before_count;
    return CUDA_SUCCESS;
}

/* Taken from kernels' nodes and forgotten: none changes what simulated work does. */
static CUresult set_attribute(CUgraphNode node, const CUkernelNodeAttrValue *value)
{
    bool kernel = node != NULL && node->command.kind == COMMAND_KERNEL;
    return kernel && value != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult clone(CUgraph *out, CUgraph graph)
{
    if (out == NULL || !graph_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    *out = graph_clone(graph);
    return CUDA_SUCCESS;
}

#define NODE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count
API(cuGraphAddKernelNode_v2, (NODE, const CUDA_KERNEL_NODE_PARAMS *params),
    add_kernel(out, graph, before, count, params))
API(cuGraphAddMemcpyNode, (NODE, const CUDA_MEMCPY3D *params, CUcontext context),
    add_copy(out, graph, before, count, params))
API(cuGraphAddMemsetNode, (NODE, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
    add_set(out, graph, before, count, params))
API(cuGraphAddHostNode, (NODE, const CUDA_HOST_NODE_PARAMS *params),
    add_host(out, graph, before, count, params))
API(cuGraphAddEmptyNode, (NODE), add_empty(out, graph, before, count))
API(cuGraphAddChildGraphNode, (NODE, CUgraph child), add_child(out, graph, before, count, child))
API(cuGraphKernelNodeSetAttribute,
    (CUgraphNode node, CUkernelNodeAttrID which, const CUkernelNodeAttrValue *value),
    set_attribute(node, value))
API(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *out), get_type(node, out))
API(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *out, size_t *count),
    get_before(node, out, count))
API(cuGraphClone, (CUgraph * out, CUgraph graph), clone(out, graph))
