/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The short cut for programs that call a shared libcudart: its cudaMalloc and cudaFree, exported by us.
 * Here is what they need of shim/entry/alloc.c, and what the dlsym stub needs to know of them.
 */
#ifndef SHIM_RUNTIME_H
#define SHIM_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

/* Implemented in shim/entry/alloc.c. Serve a cudaMalloc or cudaFree of a runtime that keeps the calling
 * thread's context current (12.0 and newer) straight from the pool. False: not served and nothing
 * changed, the call goes on to the runtime, and from there to the driver's hooks. Keep errno. */
bool entry_runtime_malloc(void **p, size_t size_bytes);
/* The same; a runtime's free also makes a context current where none is, which is left to it. */
enum entry_freed { ENTRY_PASSED, ENTRY_FREED, ENTRY_FREED_WITHOUT_CONTEXT };
enum entry_freed entry_runtime_free(void *p);

/* Whether the address lies in the pool. */
bool entry_in_pool(const void *p);

/* Whether the name is one of the runtime's that we export. */
bool runtime_exports(const char *name);

/* Whether the process has loaded a shared libcudart. */
bool runtime_loaded(void);

#endif
