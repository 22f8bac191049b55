/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the wrapper of the runtime's cudaMalloc (shim/route/runtime.c) calls: memory straight from
 * the pool, without the runtime. Takes no lock of its own; keeps errno.
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

#endif
