/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The record and pool of the calling thread's current context, for the wrappers: found, or made at
 * the context's first allocation. The quick look at it is context_quick_pool.
 */
#ifndef SHIM_CURRENT_H
#define SHIM_CURRENT_H

#include "shim/context/context.h"

/* The record of the calling thread's current context, made if there is none. The record of a green
 * context is that of its device's primary context (shim/context/green_context.h). The first call in a
 * context starts the library. NULL: no context is current, the context is about to end, the
 * library is off, or there is no room for a record. Calls the driver. Keeps errno. */
struct context *current_context(void);

#endif
