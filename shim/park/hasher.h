/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The hashes of hash.h, computed by the GPU in the contexts whose memory is hashed.
 *
 * A context gets the kernel and a little device memory (HASHER_BYTES), and keeps both until it
 * ends. Whoever cannot have them is parked as without hashes.
 *
 * 1. To load a kernel the driver may wait for the work of the context, take the loader's lock, and
 *    compile. So it is loaded while the gate is open, in a context that is idle at that moment, and
 *    only at a park: the program has not used the GPU lately, or has been asked to pause. Not
 *    excluded: work begins meanwhile that ends only after a later launch, and the driver keeps that
 *    launch waiting for the end of the load, as it does for any other module.
 * 2. The key is random, and a context's own. It is used only while the context lives (its id is
 *    looked at), so a context that takes the place of another one has another key. Each hash has
 *    the number of its key, and hashes of different keys are different.
 * 3. The key goes to the device, and pages are hashed, behind the gate, while no work runs. The
 *    work is that of the context's own stream. It is complete at the return.
 * 4. The first page of a context that is hashed is the beginning of the key. If the C function of
 *    hash.h gives another hash for it, the context hashes no more: a compiler at fault costs the
 *    use, and not a byte.
 * No lock: the park thread alone calls this.
 */
#ifndef SHIM_HASHER_H
#define SHIM_HASHER_H

#include "shim/context/context.h"
#include "shim/park/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HASHER_PAGES = 1024, /* at once: less than a millisecond on an H100 */
    HASHER_BYTES = HASH_KEY_BYTES + HASHER_PAGES * (int)sizeof(struct hash),
};

/* The context gets the kernel, if it is idle and has none. The gate is open; c is pinned. */
void hasher_load(struct context *c);
/* The hashes of num_pages pages (HASHER_PAGES at most) from addr on, and the number of their key.
 * 0: the context does not hash. c is pinned, and no work runs (step 3). */
uint64_t hasher_run(struct context *c, uint64_t addr, size_t num_pages, struct hash *out);
/* Frees the key on the host, which the next context needs anew. */
void hasher_finish(void);

#endif
