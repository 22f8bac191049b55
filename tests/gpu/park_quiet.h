/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Kinds of GPU work for park_quiet.c, each of which writes a value into a part of an arena. A lane
 * is one thread's work of one kind. A lane has memory in the arena, in equal parts; in one round
 * each submission writes a part of its own, so that nothing hides what came late.
 */
#ifndef TESTS_GPU_PARK_QUIET_H
#define TESTS_GPU_PARK_QUIET_H

#include "tests/gpu/driver.h"

#include <stdbool.h>
#include <stddef.h>

enum { PARTS = 8 };

struct lane {
    const struct kind *kind;
    CUdeviceptr at;         /* PARTS parts of the kind's size */
    CUdeviceptr source;     /* as many bytes that the kind reads from */
    uint32_t values[PARTS]; /* what each part holds once all work is complete */
    unsigned used;          /* parts of this round */
    CUstream stream, other; /* non-blocking */
    uint32_t *pinned;       /* as many bytes of pinned host memory */
    uint32_t *pageable;     /* a part's */
    CUgraphExec exec[PARTS], inner[PARTS];
    CUtexObject texture[PARTS];
    CUgreenCtx green;
};

struct kind {
    const char *name;
    size_t part_bytes;
    /* Whether the kind is possible here; makes what it needs. NULL: it needs nothing. */
    bool (*prepare)(struct lane *l);
    /* Submits work that makes part `part` of the lane hold v in all of its words. Waits for
     * nothing. */
    CUresult (*submit)(struct lane *l, unsigned part, uint32_t v);
    bool is_pinned_too; /* the same value comes into that part of `pinned` */
};

extern const struct kind kinds[];
extern const size_t num_kinds;

/* Loads the kernels of kernels.h, and those of park_quiet.cu from a file (NULL: none). */
void kinds_load(const char *cubin);

/* The address of a part. */
CUdeviceptr lane_part(const struct lane *l, unsigned part);

#endif
