/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts that end while they have memory, for scenes that look at what comes to their addresses.
 */
#pragma once

#include "tests/preload/scene.h"

enum { ENDING_BLOCKS = 10, ENDING_CONTEXTS = 100 };

/* Before scene_start. The simulated driver sleeps once it has given a context's addresses back. So
 * other threads get some of them before the cache has forgotten the context. */
static inline void contexts_take_ns(const char *destroy_ns)
{
    scene_cost("cuCtxDestroy_v2", destroy_ns);
}

static inline void contexts_end_slowly(void)
{
    contexts_take_ns("200000");
}

/* Makes and ends one context after the other, of which some still have live blocks. A real driver
 * takes some 100 ms for each, and gets fewer. */
static inline void end_contexts(int count)
{
    for (int left = scene_simulated() ? count : count * 2 / 5; left > 0; left--) {
        uint64_t own[ENDING_BLOCKS];
        CUcontext ctx = NEW_CONTEXT();
        for (int i = 0; i < ENDING_BLOCKS; i++)
            own[i] = NEW_BLOCK((size_t)(i + 1) * MIB);
        for (int i = 0; i < ENDING_BLOCKS; i += 1 + left % 2)
            REQUIRE(gpu_free(own[i]));
        REQUIRE(cuCtxDestroy(ctx));
    }
}
