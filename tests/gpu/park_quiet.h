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
    CUcontext green; /* a green context, as a context */
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

/* The lists end with a name of NULL. */
extern const struct kind kernel_kinds[], copy_kinds[], graph_kinds[];

/* Functions that the driver may lack: NULL. */
#define FUNCTION(symbol) __typeof__(symbol) *symbol;
extern struct quiet_calls {
#include "tests/gpu/park_quiet.def"
} call;

/* The kernels of kernels.h, and of park_quiet.cu (NULL: not loaded). */
extern struct quiet_kernels {
    CUfunction fill_late, copy, spin;
    CUkernel fill_anywhere; /* fill_late, for any context */
    CUfunction child_forget, child_tail, late_copy, start_graph, from_texture, loop_fill;
} kernel;

/* How long a kernel is busy before it writes. */
#define LATE_NS UINT64_C(20000)

/* Parts of common kinds, and of copies that must not be small. */
#define PART_SMALL ((size_t)4 << 10)
#define PART_LARGE ((size_t)256 << 10)

/* Finds the functions. Loads the kernels of kernels.h, and those of park_quiet.cu from a file
 * (NULL: none). */
void quiet_load(const char *cubin);

/* The addresses of a part, of what it is made from, and of its pinned memory; its words. */
CUdeviceptr lane_part(const struct lane *l, unsigned part);
CUdeviceptr lane_source(const struct lane *l, unsigned part);
uint32_t *lane_pinned(const struct lane *l, unsigned part);
uint64_t lane_words(const struct lane *l);

/* Work that kinds are made of. */
CUresult quiet_fill(CUstream stream, CUdeviceptr at, uint64_t n_words, uint32_t v);
CUresult quiet_spin(CUstream stream);
CUresult quiet_set_source(struct lane *l, unsigned part, uint32_t v);

#endif
