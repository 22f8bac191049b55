/* SPDX-License-Identifier: BSD-2-Clause */
/* Nodes of a graph that have a condition. For scenes that are linked to the driver. */
#pragma once

#include "tests/preload/scene.h"

/* Adds one whose condition starts out true. Returns its body, an empty graph; NULL: the driver has
 * no such nodes. */
static inline CUgraph add_conditional(CUgraph graph)
{
    CUresult (*make_handle)(CUgraphConditionalHandle *, CUgraph, CUcontext, unsigned, unsigned) =
        NULL;
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *) =
        NULL;
    CUgraphConditionalHandle handle = 0;
    CUgraphNode node = NULL;
    *(void **)&make_handle = scene_driver_symbol("cuGraphConditionalHandleCreate");
    *(void **)&add = scene_driver_symbol("cuGraphAddNode");
    if (make_handle == NULL || add == NULL)
        return NULL;
    CUcontext current = CURRENT_CONTEXT();
    REQUIRE(make_handle(&handle, graph, current, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_IF;
    params.conditional.size = 1;
    params.conditional.ctx = current;
    REQUIRE(add(&node, graph, NULL, 0, &params));
    return params.conditional.phGraph_out[0];
}
