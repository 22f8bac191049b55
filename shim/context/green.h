/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Green contexts: parts of a device's primary context with streams of their own. What is allocated in one
 * is the primary's memory, and the primary's context events and waits cover its work (both documented, and
 * seen on an H200), while its own events cover nothing but itself. So the pool of the primary serves it.
 */
#ifndef SHIM_GREEN_H
#define SHIM_GREEN_H

#include "shim/driver/hooks.h"

/* Whose memory and fences the calling thread's current context has: ctx itself, or the primary context
 * that it is a part of. NULL: that cannot be told, or the driver has no context events: then nothing
 * allocated there may be pooled. */
CUcontext green_owner(CUcontext ctx);

/* One is about to be made. */
void green_expect(void);

/* The context is no more. */
void green_forget(CUcontext ctx);
/* The primary context is no more, nor are those that are parts of it. */
void green_forget_primary(CUcontext primary);

#endif
