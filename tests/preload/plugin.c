/* SPDX-License-Identifier: BSD-2-Clause */
/* A plugin's side of plugin.h, beside the basic scene that is built into it as plugin_main. Works
 * on the thread's current context, as its runtime finds it. No state. */
#include "tests/preload/plugin.h"
#include "tests/preload/scene.h"

static const uint64_t block_words = 32 * 1024;

int plugin_give(uint64_t *block, uint32_t value)
{
    int rc = gpu_malloc(block, block_words * 4);
    return rc != 0 ? rc : gpu_fill(*block, block_words, value, NULL);
}

int plugin_take(uint64_t block, uint32_t value)
{
    if (scene_wrong_words(block, block_words, value, NULL) != 0)
        return -1;
    return gpu_free(block);
}
