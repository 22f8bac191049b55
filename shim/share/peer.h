/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Peer access: which context may reach which other one's memory. The driver knows it for its own
 * allocations, and for whole devices only as far as mapped memory goes.
 */
#ifndef SHIM_PEER_H
#define SHIM_PEER_H

#include "shim/driver/hooks.h"

/* Natively the driver copies between devices, and between any device and the host, whichever device is current and
 * whether peers have access or not; of mapped memory it refuses that (CUDA_ERROR_INVALID_VALUE, measured) where
 * the current device has no access. After such a refusal: gives the current context access to all arenas of other
 * devices, and to what was opened there (shim/share/ipc.h); true: there was one to which it had none, the copy is to be tried again. Keeps errno. (Where
 * devices cannot be peers there are no arenas: see backing.h.) */
bool peer_mend(void);

/* The context is gone, and what it was allowed, and what was allowed on it. */
void peer_forget(CUcontext ctx);

#endif
