/* SPDX-License-Identifier: BSD-2-Clause */
/* See inject.h. A real driver offers the library more than that through CUPTI, which is private. */
#include "tests/sim/inject.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void inject(void)
{
    static atomic_bool done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    int (*start)(void);
    if (atomic_exchange(&done, true) || path == NULL)
        return;
    void *library = dlopen(path, RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, "InitializeInjection") : NULL;
    if (symbol == NULL)
        return;
    memcpy(&start, &symbol, sizeof start);
    start();
}
