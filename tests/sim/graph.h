/* SPDX-License-Identifier: BSD-2-Clause */
/* Graphs: nodes that are commands, with edges. An executable graph is a copy in topological order.
 * Driver lock. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "tests/sim/command.h"

struct CUgraphNode_st {
    struct command command;
    CUgraphNode *before; /* the nodes that it depends on */
    size_t before_count;
    size_t index;  /* in its graph; every dependency has a lower one */
    CUgraph child; /* a graph that takes the node's place, or NULL */
};

struct CUgraph_st {
    uint32_t magic;
    CUgraphNode *nodes;
    size_t count, capacity;
    bool borrowed; /* a capture writes into a graph of the program's */
};

CUgraph graph_create(void);
void graph_destroy(CUgraph graph);

/* Adds a node behind `before`. The graph owns it. */
CUgraphNode graph_add(CUgraph graph, const struct command *command, CUgraphNode const *before,
                      size_t before_count);

CUresult graph_launch(CUgraphExec exec, CUstream handle);

/* `node` is one of `ends`, or one of `ends` depends on it. */
bool graph_leads(CUgraph graph, CUgraphNode node, CUgraphNode const *ends, size_t end_count);

#endif
