/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The processors near a GPU: those of the memory node that its bus is on. Threads there copy faster
 * between the GPU and host memory, and pages that they touch first lie there. No state, no lock.
 */
#ifndef SHIM_NODE_H
#define SHIM_NODE_H

#include <stdbool.h>
#include <stdint.h>

enum { NODE_WORDS = 128 };

/* A bit for each processor, as the kernel takes it. */
struct node_processors {
    uint64_t words[NODE_WORDS];
};

/* Where a GPU is on the bus. */
struct node_place {
    unsigned domain, bus, device;
};

/* Those that the calling thread may run on. */
void node_allowed(struct node_processors *out);
unsigned node_count(const struct node_processors *p);
/* Those of *allowed that are near. False, with *out unchanged: the kernel names none. root: "", or
 * a folder that stands for the root of the file system. */
bool node_near(const char *root, const struct node_place *place,
               const struct node_processors *allowed, struct node_processors *out);
/* The calling thread, an own one, runs there from now on. */
void node_bind(const struct node_processors *p);

#endif
