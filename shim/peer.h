/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Peer access: which context may reach which other one's memory. The driver knows it for its own
 * allocations, and for whole devices only as far as mapped memory goes.
 */
#ifndef SHIM_PEER_H
#define SHIM_PEER_H

#include "shim/hooks.h"

/* The context is gone, and what it was allowed, and what was allowed on it. */
void peer_forget(CUcontext ctx);

#endif
