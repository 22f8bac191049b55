/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What neighbours (neighbour.h) hold of a GPU, and wait for, as their pages say. Nobody is asked.
 * No CUDA.
 */
#ifndef SHIM_NEIGHBOUR_USE_H
#define SHIM_NEIGHBOUR_USE_H

#include "shim/page/dir.h"

#include <stddef.h>
#include <stdint.h>

/* Who else wants memory of a GPU, or has it, as the pages say. */
struct neighbour_needs {
    uint64_t older_bytes;          /* that neighbours wait for since before since_ns (park.h) */
    uint64_t most_pid, most_bytes; /* the one that holds most, in its own pid namespace; 0: none */
};
void neighbour_use_needs(const char *folder, const struct page_id *self, const unsigned char *uuid,
                         uint64_t since_ns, struct neighbour_needs *out);

/* The neighbours that have memory of the GPU (uuid: 16 bytes), those with most first. Their pages
 * may be 10 s old. Fills at most `most`. Returns how many. *all_bytes (NULL: not asked): what all
 * of them have. Waits 100 ms at most for threads that ask. Keeps errno. */
struct neighbour_held {
    int pid;
    uint64_t bytes;
    char name[16]; /* of the process; "": not known */
};
size_t neighbour_use_list(const char *folder, const struct page_id *self, const unsigned char *uuid,
                          struct neighbour_held *out, size_t most, uint64_t *all_bytes);

#endif
