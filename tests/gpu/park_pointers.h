/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Calls of the driver that get an address of an arena, for park_pointers.c. A case prepares what it
 * needs while the arena is mapped, then makes one call. All runs on one thread.
 */
#ifndef TESTS_GPU_PARK_POINTERS_H
#define TESTS_GPU_PARK_POINTERS_H

#include "tests/gpu/driver.h"

#include <stddef.h>

/* What a call answers when the driver has no such function. */
#define NOT_HERE ((CUresult) - 1)

/* The case's arena and what it has made. */
struct look {
    CUdeviceptr at; /* ARENA_BYTES, which are mapped or not */
    CUcontext context;
    CUstream stream;
    void *host; /* pinned */
    CUfunction fill;
    CUgraph graph, other;
    CUgraphNode node;
    CUgraphExec exec;
    CUtexObject texture;
    CUtexref reference;
    unsigned long long number;
    char out[160]; /* what the call gave beside its code */
};

enum { ARENA_BYTES = 8 << 20, OUT_BYTES = 160 };

struct pointer_case {
    const char *name;
    void (*before)(struct look *l); /* NULL: nothing */
    CUresult (*call)(struct look *l);
};

/* Adds to what the call gave. */
void look_say(struct look *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds an address, as the distance from the arena. */
void look_say_address(struct look *l, const char *name, CUdeviceptr at);

/* The lists end with a name of NULL. Each list has its own functions to look up first. */
extern const struct pointer_case question_cases[], graph_cases[];
void question_functions(void);
void graph_functions(void);

#endif
