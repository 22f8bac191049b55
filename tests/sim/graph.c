/* SPDX-License-Identifier: BSD-2-Clause */
/* Graphs, their nodes, instantiation and launch. */
#include "tests/sim/graph.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/capture.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define MAGIC 0x47525048u
#define EXEC_MAGIC 0x47455845u

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph;
    unsigned long long flags;
    CUcontext context; /* that it was made in, or NULL */
    uint64_t context_id;
};

static struct handles graphs = {.size = sizeof(struct CUgraph_st)};
static struct handles execs = {.size = sizeof(struct CUgraphExec_st)};

static bool graph_valid(CUgraph graph)
{
    return (uintptr_t)graph >= 4096 && graph->magic == MAGIC;
}

CUgraph graph_create(void)
{
    CUgraph graph = handles_take(&graphs);
    *graph = (struct CUgraph_st){.magic = MAGIC};
    return graph;
}

void graph_destroy(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        command_drop(&graph->nodes[i]->command);
        if (graph->nodes[i]->child != NULL)
            graph_destroy(graph->nodes[i]->child);
        free(graph->nodes[i]->before);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    graph->magic = 0;
    handles_give(&graphs, graph);
}

CUgraphNode graph_add(CUgraph graph, const struct command *command, CUgraphNode const *before,
                      size_t before_count)
{
    if (graph->count == graph->capacity) {
        graph->capacity = graph->capacity * 2 + 8;
        graph->nodes = never_null(realloc(graph->nodes, graph->capacity * sizeof *graph->nodes));
    }
    CUgraphNode node = never_null(malloc(sizeof *node));
    CUgraphNode *copy = never_null(malloc((before_count + 1) * sizeof *copy));
    if (before_count > 0)
        memcpy(copy, before, before_count * sizeof *copy);
    *node = (struct CUgraphNode_st){
        .command = *command, .before = copy, .before_count = before_count, .index = graph->count};
    graph->nodes[graph->count++] = node;
    return node;
}

bool graph_leads(CUgraph graph, CUgraphNode node, CUgraphNode const *ends, size_t end_count)
{
    bool *reached = never_null(calloc(graph->count + 1, sizeof *reached));
    for (size_t i = 0; i < end_count; i++)
        reached[ends[i]->index] = true;
    for (size_t i = graph->count; i-- > 0;)
        for (size_t j = 0; reached[i] && j < graph->nodes[i]->before_count; j++)
            reached[graph->nodes[i]->before[j]->index] = true;
    bool leads = reached[node->index];
    free(reached);
    return leads;
}

/* Copies all nodes of `from` behind `roots`. A child graph takes the place of its node. */
static void inline_into(CUgraph to, CUgraph from, CUgraphNode const *roots, size_t root_count)
{
    CUgraphNode *map = never_null(malloc((from->count + 1) * sizeof *map));
    for (size_t i = 0; i < from->count; i++) {
        CUgraphNode node = from->nodes[i];
        CUgraphNode *before = never_null(malloc((node->before_count + 1) * sizeof *before));
        for (size_t j = 0; j < node->before_count; j++)
            before[j] = map[node->before[j]->index];
        CUgraphNode const *entry = node->before_count > 0 ? before : roots;
        size_t entry_count = node->before_count > 0 ? node->before_count : root_count;
        if (node->child != NULL) {
            size_t first = to->count;
            inline_into(to, node->child, entry, entry_count);
            size_t added = to->count - first;
            CUgraphNode *all = never_null(malloc((added + entry_count + 1) * sizeof *all));
            memcpy(all, to->nodes + first, added * sizeof *all);
            if (entry_count > 0)
                memcpy(all + added, entry, entry_count * sizeof *all);
            map[i] =
                graph_add(to, &(struct command){.kind = COMMAND_MARKER}, all, added + entry_count);
            free(all);
        } else {
            map[i] = graph_add(to, &node->command, entry, entry_count);
        }
        free(before);
    }
    free(map);
}

/* Returns a copy in which child graphs take the places of their nodes. */
static CUgraph graph_clone(CUgraph graph)
{
    CUgraph clone = graph_create();
    inline_into(clone, graph, NULL, 0);
    return clone;
}

static bool graph_has(CUgraph graph, CUgraphNode node)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i] == node)
            return true;
    return false;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    REFUSE(out == NULL || !graph_valid(graph), INVALID_VALUE);
    CUcontext context = thread_current();
    if (context_usable(context) != CUDA_SUCCESS)
        context = NULL;
    REFUSE(context != NULL && !context_take(context, config.object_bytes), OUT_OF_MEMORY);
    CUgraphExec exec = handles_take(&execs);
    *exec = (struct CUgraphExec_st){.magic = EXEC_MAGIC,
                                    .graph = graph_clone(graph),
                                    .flags = flags,
                                    .context = context,
                                    .context_id = context != NULL ? context->id : 0};
    *out = exec;
    return CUDA_SUCCESS;
}

static bool exec_valid(CUgraphExec exec)
{
    return (uintptr_t)exec >= 4096 && exec->magic == EXEC_MAGIC;
}

CUresult graph_launch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    TRY(stream_resolve(handle, &stream));
    REFUSE(!exec_valid(exec), INVALID_VALUE);
    if (stream->capture != NULL) {
        struct command marker = {.kind = COMMAND_MARKER};
        TRY(capture_add(stream, &marker));
        stream->capture_tail[0]->child = graph_clone(exec->graph);
        return CUDA_SUCCESS;
    }
    TRY(capture_implicit(stream));
    /* Each node waits for what was in the stream before and for its own dependencies. The hazard
     * checker sees a graph as one piece of work of the stream. */
    CUgraph graph = exec->graph;
    struct work *entry = work_retain(stream_frontier(stream));
    struct work **works = never_null(calloc(graph->count + 1, sizeof *works));
    struct work **before = never_null(calloc(graph->count + 2, sizeof *before));
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        before[0] = entry;
        for (size_t j = 0; j < node->before_count; j++)
            before[1 + j] = works[node->before[j]->index];
        works[i] = stream_enqueue_node(stream, &node->command, before, 1 + node->before_count);
    }
    if (graph->count > 0) {
        struct work *join =
            stream_enqueue(stream, &(struct command){.kind = COMMAND_MARKER}, works, graph->count);
        work_release(join);
    }
    for (size_t i = 0; i < graph->count; i++)
        work_release(works[i]);
    work_release(entry);
    free(works);
    free(before);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph graph)
{
    REFUSE(!graph_valid(graph), INVALID_VALUE);
    graph_destroy(graph);
    return CUDA_SUCCESS;
}

static CUresult exec_destroy(CUgraphExec exec)
{
    REFUSE(!exec_valid(exec), INVALID_VALUE);
    if (exec->context != NULL && context_is(exec->context, exec->context_id))
        context_give(exec->context, config.object_bytes);
    graph_destroy(exec->graph);
    exec->magic = 0;
    handles_give(&execs, exec);
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    REFUSE(!graph_valid(graph) || count == NULL, INVALID_VALUE);
    for (size_t i = 0; nodes != NULL && i < graph->count && i < *count; i++)
        nodes[i] = graph->nodes[i];
    if (nodes == NULL || graph->count < *count)
        *count = graph->count;
    return CUDA_SUCCESS;
}

/* Adds a node without an effect. `before` has to be nodes of the graph. */
static CUresult add_empty(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count)
{
    REFUSE(out == NULL || !graph_valid(graph) || (count > 0 && before == NULL), INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        REFUSE(!graph_has(graph, before[i]), INVALID_VALUE);
    *out = graph_add(graph, &(struct command){.kind = COMMAND_MARKER}, before, count);
    return CUDA_SUCCESS;
}

static CUresult add_child(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                          CUgraph child)
{
    REFUSE(!graph_valid(child), INVALID_VALUE);
    TRY(add_empty(out, graph, before, count));
    (*out)->child = graph_clone(child);
    return CUDA_SUCCESS;
}

/* Where the driver does not know the memory the call says so (seen). */
static bool known(uint64_t addr, uint64_t size)
{
    return size > 0 && memory_covers(addr, size, NULL);
}

static bool set_effect(CUgraphNode node, const struct command *command)
{
    if (command->kind == COMMAND_MARKER || node->command.kind != command->kind)
        return false;
    node->command = *command;
    return true;
}

/* A node with an effect. kind COMMAND_MARKER: its parameters are wrong. */
static CUresult add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                         struct command command)
{
    REFUSE(command.kind == COMMAND_MARKER, INVALID_VALUE);
    TRY(add_empty(out, graph, before, count));
    (*out)->command = command;
    return CUDA_SUCCESS;
}

/* The node's copy in a graph that was instantiated has the same place: no node is a child graph. */
static CUresult set_node(CUgraphExec exec, CUgraphNode node, struct command command)
{
    REFUSE(exec != NULL && (!exec_valid(exec) || node == NULL || node->index >= exec->graph->count),
           INVALID_VALUE);
    CUgraphNode its = exec != NULL ? exec->graph->nodes[node->index] : node;
    return its != NULL && set_effect(its, &command) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Of one row of bytes. */
static struct command copy_of(const CUDA_MEMCPY3D *p)
{
    struct command command = {.kind = COMMAND_MARKER};
    if (p == NULL || p->Height != 1 || p->Depth != 1)
        return command;
    bool to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
    bool from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST;
    uint64_t dst = to_host ? (uint64_t)(uintptr_t)p->dstHost : p->dstDevice;
    uint64_t src = from_host ? (uint64_t)(uintptr_t)p->srcHost : p->srcDevice;
    if ((to_host || known(dst, p->WidthInBytes)) && (from_host || known(src, p->WidthInBytes)))
        command = (struct command){.kind = COMMAND_COPY,
                                   .copy = {.dst = dst,
                                            .src = src,
                                            .size = p->WidthInBytes,
                                            .dst_host = to_host,
                                            .src_host = from_host}};
    return command;
}

static struct command set_of(const CUDA_MEMSET_NODE_PARAMS *p)
{
    struct command command = {.kind = COMMAND_MARKER};
    if (p != NULL && p->height == 1 && known(p->dst, p->width * p->elementSize))
        command = (struct command){.kind = COMMAND_SET,
                                   .set = {p->dst, p->width, p->elementSize, p->value}};
    return command;
}

#define NODE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count

API(cuGraphCreate, (CUgraph * out, unsigned flags),
    NEEDS(out != NULL && flags == 0, INVALID_VALUE) GIVE(out, graph_create()))
API(cuGraphDestroy, (CUgraph graph), destroy(graph))
API(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count),
    get_nodes(graph, nodes, count))
API(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
    instantiate(out, graph, flags))
API_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream handle),
         graph_launch(exec, STREAM(handle)))
API(cuGraphExecDestroy, (CUgraphExec exec), exec_destroy(exec))
API(cuGraphAddEmptyNode, (NODE), add_empty(out, graph, before, count))
API(cuGraphAddChildGraphNode, (NODE, CUgraph child), add_child(out, graph, before, count, child))
API(cuGraphAddMemcpyNode, (NODE, const CUDA_MEMCPY3D *params, CUcontext context),
    ((void)context, add_node(out, graph, before, count, copy_of(params))))
API(cuGraphAddMemsetNode, (NODE, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
    ((void)context, add_node(out, graph, before, count, set_of(params))))
API(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D *params),
    set_node(NULL, node, copy_of(params)))
API(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params),
    set_node(NULL, node, set_of(params)))
API(cuGraphExecMemcpyNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context),
    ((void)context, set_node(exec, node, copy_of(params))))
API(cuGraphExecMemsetNodeSetParams,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
    ((void)context, set_node(exec, node, set_of(params))))
/* Only kernel nodes have attributes. None changes what simulated work does. */
API(cuGraphKernelNodeSetAttribute,
    (CUgraphNode node, CUkernelNodeAttrID which, const CUkernelNodeAttrValue *value),
    NEEDS(node != NULL && node->command.kind == COMMAND_KERNEL && value != NULL, INVALID_VALUE)
        CUDA_SUCCESS)
