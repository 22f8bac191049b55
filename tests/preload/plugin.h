/* SPDX-License-Identifier: BSD-2-Clause */
/* What a plugin of the test programs exports: the basic scene, and a block for another plugin. Each
 * plugin has a CUDA runtime of its own. */
#pragma once

#include <stdint.h>

#define PLUGIN_EXPORT __attribute__((visibility("default")))

/* The basic scene; main's result. */
PLUGIN_EXPORT int plugin_main(void);

/* A block filled with value, and the check and free of such a block; both return CUDA's code, or
 * -1 for wrong contents. */
PLUGIN_EXPORT int plugin_give(uint64_t *block, uint32_t value);
PLUGIN_EXPORT int plugin_take(uint64_t block, uint32_t value);
