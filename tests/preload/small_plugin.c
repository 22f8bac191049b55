/* SPDX-License-Identifier: BSD-2-Clause */
/* A plugin that calls its runtime's cudaMalloc and cudaFree, the latter also while it is unloaded.
 */
#include "tests/preload/small_runtime.h"

static void *held;

int small_plugin_hold(void)
{
    int rc = (int)cudaMalloc(&held, 4096);
    return held ? rc : -1; /* no jump there: it is this code that the call is to come back to */
}

int small_plugin_jump(void **p)
{
    return (int)cudaMalloc(p, 4096);
}

__attribute__((destructor)) static void give_back(void)
{
    if (held && cudaFree(held) == cudaSuccess)
        held = NULL;
}

int small_plugin_play(int n)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        void *p = NULL;
        rc = (int)cudaMalloc(&p, (size_t)1 << 20);
        if (rc == 0)
            rc = (int)cudaFree(p);
    }
    return rc;
}
