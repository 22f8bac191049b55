/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the wrappers of the runtime's cudaMalloc and cudaFree (shim/route/runtime.c) call:
 * allocation and free straight from the pool, without the runtime. None takes a lock of its own;
 * all keep errno.
 */
#ifndef SHIM_ENTRY_ALLOC_H
#define SHIM_ENTRY_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Serves a cudaMalloc of a runtime that keeps the calling thread's context current (12.0 and newer)
 * from the pool. False: nothing was served and nothing has changed. The caller then passes the call
 * to the runtime, from which it comes to the driver's wrappers. caller: the code that asked, for
 * the trace. */
bool entry_runtime_malloc(void **p, size_t size_bytes, const void *caller);

/* The same for cudaFree. ENTRY_FREED_WITHOUT_CONTEXT: the block is free, but the calling thread has
 * no current context. The runtime's own cudaFree makes one current, so the caller calls it with
 * NULL. */
enum entry_freed { ENTRY_PASSED, ENTRY_FREED, ENTRY_FREED_WITHOUT_CONTEXT };
enum entry_freed entry_runtime_free(void *p, const void *caller);

/* Whether the address lies in the pool. */
bool entry_in_pool(const void *p);

#endif
