/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Green contexts: parts of a device's primary context with streams of their own.
 * 1. Memory allocated in a green context is the primary context's memory.
 * 2. The primary's context events and waits cover the green context's work. Its own context events
 *    cover nothing else. (1 and 2 are documented, and were seen on an H200.)
 * So the pool of the primary context serves it.
 */
#ifndef SHIM_GREEN_CONTEXT_H
#define SHIM_GREEN_CONTEXT_H

#include "shim/driver/hooks.h"

/* ctx is the calling thread's current context. Returns the context that owns its memory and has its
 * fences: ctx itself, or the primary context that ctx is a part of. NULL: the driver does not say,
 * or has no context events, so memory there must not be pooled. Calls the driver. */
CUcontext green_context_owner(CUcontext ctx);

/* A green context is about to be made. */
void green_context_expect(void);

/* The green context (NULL: none) has ended. */
void green_context_forget(CUcontext ctx);
/* The primary context has ended, and with it all that are parts of it. */
void green_context_forget_primary(CUcontext primary);

#endif
