/* SPDX-License-Identifier: BSD-2-Clause */
/* An opened plugin (plugin.h), for the programs that open some. */
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct plugin {
    int (*play)(void);
    int (*give)(uint64_t *block, uint32_t value);
    int (*take)(uint64_t block, uint32_t value);
};

static inline int plugin_find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL ? 0 : -1;
}

/* What dlopen answered becomes a plugin. 0; or another number after a line about what is wrong. */
static inline int plugin_opened(struct plugin *plugin, void *handle)
{
    if (handle == NULL) {
        printf("cannot open a plugin: %s\n", dlerror());
        return -1;
    }
    return plugin_find(handle, "plugin_main", &plugin->play) +
           plugin_find(handle, "plugin_give", &plugin->give) +
           plugin_find(handle, "plugin_take", &plugin->take);
}
