/* SPDX-License-Identifier: BSD-2-Clause */
/* A program without CUDA opens a plugin with it, plays, closes the plugin and opens it again. The
 * runtime in the plugin comes and goes; the cache stays. Arguments: the plugin's path. */
#include "tests/preload/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL ? 0 : -1;
}

int main(int argc, char **argv)
{
    for (uint32_t round = 0; argc > 1 && round < 4; round++) {
        int (*play)(void) = NULL;
        int (*give)(uint64_t *block, uint32_t value) = NULL;
        int (*take)(uint64_t block, uint32_t value) = NULL;
        uint64_t block = 0;
        void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL || find(handle, "plugin_main", &play) != 0 ||
            find(handle, "plugin_give", &give) != 0 || find(handle, "plugin_take", &take) != 0) {
            printf("cannot open the plugin: %s\n", dlerror());
            return 1;
        }
        int rc = play();
        if (rc != 0)
            return rc;
        int given = give(&block, round), taken = take(block, round);
        int closed = dlclose(handle);
        printf("round %u: given %d, taken %d, closed %d, loaded %d\n", round, given, taken, closed,
               dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    }
    return 0;
}
