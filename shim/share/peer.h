/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Peer access: which context may access which other context's memory. The driver knows it for its
 * own allocations. For mapped memory it knows only which device may access which range. So the
 * library grants the accessing context's device access to all that is mapped on the other one's.
 * That holds from the first context of that device that needs it to the last: one to which the
 * program gave access, or one that has copied (peer_grant_missing).
 *
 * Of up to 2 * CONTEXTS_MAX contexts that live at once, each is known. With more of them access
 * stays once it was granted.
 */
#ifndef SHIM_PEER_H
#define SHIM_PEER_H

#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stddef.h>

struct context;

/* The program is about to enable or disable access of the current context to the memory of `peer`.
 * No other thread does so until peer_end_change gets what this returned, but for step 6 of peer.c:
 * signal handlers, and waits that last too long. */
bool peer_begin_change(CUcontext peer);
void peer_end_change(bool begun);
/* Does the current context have that access? whole: and no thread changes it just now. */
bool peer_is_known(CUcontext peer, bool whole);

/* The program gave the current context access to the memory of `peer`: grants the same for what is
 * mapped. Returns the driver's code. After a failure the pair is known, but part of the memory may
 * be out of reach: the caller tries again or calls peer_revoke. CUDA_SUCCESS if both are of one
 * device. */
CUresult peer_grant(CUcontext peer);
/* Takes that access away, unless another context of the device needs it, or a copy did. */
void peer_revoke(CUcontext peer);

/* Calls for all pools reach the record again, or for the first time. Gives its memory the access
 * that changed while they did not. */
void peer_renew(const struct context *c);

/* The driver copies between devices, and between any device and the host, whichever device is
 * current and whether or not peers have access. For mapped memory it refuses such a copy
 * (CUDA_ERROR_INVALID_VALUE, measured) if the current device has no access. To be called after that
 * refusal: gives the current context access to all arenas of other devices, and to what was opened
 * there (import.h), until the context ends. True: the copy is worth another try, because access was
 * granted, here or in another thread meanwhile. Keeps errno. Where devices cannot be peers there
 * are no arenas (shim/driver/backing.h). */
bool peer_grant_missing(void);

/* The program made this context. It can use all memory of its device. peer_forget ends that. */
void peer_note_context(CUcontext ctx);

/* The contexts that can use memory of other contexts' pools, each once: those that were given
 * access, and those that the program made. *count: how many there are, at most `max`. False: there
 * are more than the library knows. Takes no lock that is held over a driver call. */
bool peer_accessors(CUcontext *ctx, size_t max, size_t *count);

/* The context has ended. Takes away the access that it had, and that others had to it. */
void peer_forget(CUcontext ctx);

#endif
