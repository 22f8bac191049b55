/* SPDX-License-Identifier: BSD-2-Clause */
/* What small_runtime.c and small_plugin.c export. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

/* A hundred for each cudaMalloc that this runtime has got since the last call, one for each
 * cudaFree. */
int small_runtime_calls(void);

/* Allocates and frees n times; the first error. */
int small_plugin_play(int n);
/* cudaMalloc by a jump: whoever called this is taken for the caller of cudaMalloc. */
int small_plugin_jump(void **p);
/* Allocates a block that is freed when the plugin is unloaded. */
int small_plugin_hold(void);
/* Allocates a block in a thread of its own, which enter() has made ready for CUDA. That thread
 * frees the block when the plugin is unloaded, and the unloading waits for the thread. */
int small_plugin_hold_apart(int (*enter)(void));
