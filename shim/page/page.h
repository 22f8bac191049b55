/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room page/: the process's page, which has its state for other processes, and their requests
 * to it. layout.h is the layout, dir.h finds the place, and map.h has the mapping. This file makes
 * and removes the page and writes the state. server.h has the requests, and the thread that waits
 * at the doorbell. client.h is the other side: one process asks another one. The room's one seam is
 * that texts come in and go out as bytes: none of the files knows what they say. No CUDA.
 *
 * Why no other process harms this one, why no request is lost, why a reader sees no torn state, why
 * the page ends with the process, and why no file of the program's is touched: Note [Foreign
 * pages], Note [Requests], Note [Torn states], Note [End of a page] and Note [Descriptors] in
 * README.md. The steps that the code of this room names are theirs.
 *
 * One thread, the control thread, calls the functions, but for page_remove (any thread, at exit)
 * and page_folder.
 */
#ifndef SHIM_PAGE_H
#define SHIM_PAGE_H

#include "shim/page/dir.h"
#include "shim/page/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A state to publish. All is borrowed for the call. */
struct page_state {
    const char *body;  /* JSON */
    size_t body_bytes; /* at most PAGE_BODY_BYTES */
    const struct page_gpu *gpus;
    const struct page_park *parks; /* as many; NULL: as before */
    uint64_t asleep_since_ns, needs_since_ns;
    size_t num_gpus; /* at most PAGE_GPUS_MAX */
};

/* Makes the page with its first state, in the directory `path`, or in the first default place that
 * serves (NULL). Removes stale pages there. False: there is none, for the reason *why (static) with
 * errno (0: none), or without a reason (NULL) because the process leaves. Opens and closes
 * descriptors. To be called once. */
bool page_make(const char *path, const struct page_state *state, const char **why);
/* Has somebody removed the file, or cut it off? The end of a login session removes it in /dev/shm
 * (RemoveIPC of logind.conf), while the programs of the user go on. */
bool page_is_lost(void);
/* After that: makes the file anew, and its directory. False: that failed; the old page stays. */
bool page_renew(const struct page_state *state);
/* Where the page is, as for page_make; "" without one. Any thread. */
const char *page_folder(void);

/* Writes a new state. False: there is no page, or none any more. */
bool page_publish(const struct page_state *state);
/* A reader looks on until then (CLOCK_MONOTONIC), as it says itself. 0: none does. */
uint64_t page_watched_until_ns(void);

/* The process leaves: removes the file. Any thread; does nothing in a child. Keeps errno. */
void page_remove(void);

#endif
