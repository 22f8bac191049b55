/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the wrapper of the runtime's cudaFree (shim/route/runtime.c) calls: the way back to the
 * pool, without the runtime. None takes a lock of its own; all keep errno.
 */
#ifndef SHIM_ENTRY_FREE_H
#define SHIM_ENTRY_FREE_H

#include <stdbool.h>

/* Frees for a cudaFree of a runtime of which entry_runtime_malloc serves allocations. ENTRY_PASSED:
 * nothing has changed, and the caller passes the call to the runtime. ENTRY_FREED_WITHOUT_CONTEXT:
 * the block is free, but the calling thread has no current context. The runtime's own cudaFree
 * makes one current, so the caller calls it with NULL. caller: as for entry_runtime_malloc. */
enum entry_freed { ENTRY_PASSED, ENTRY_FREED, ENTRY_FREED_WITHOUT_CONTEXT };
enum entry_freed entry_runtime_free(void *p, const void *caller);

/* Whether the address lies in the pool. */
bool entry_in_pool(const void *p);

#endif
