/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Neighbours: other processes of the same user that have a page (shim/page/layout.h) in the
 * same directory. This file finds the one with most idle memory on a GPU and asks it to give some
 * back (page/client.h). What is asked for, and when, is in lend.h; neighbour_use.h says what all of
 * them hold. No CUDA.
 *
 * What another process writes into its page is only data. The numbers choose an order, and a reply
 * says whether another try of the call is worth it. A page of another version is not read.
 *
 * One lock: one thread of the process asks at a time (page/client.h says why), with that of
 * neighbour_page.h. The thread holds it over no call of the driver.
 */
#ifndef SHIM_NEIGHBOUR_H
#define SHIM_NEIGHBOUR_H

#include "shim/page/dir.h"

#include <stdbool.h>
#include <stdint.h>

struct neighbour_wish {
    const char *folder;         /* of the pages */
    const struct page_id *self; /* whose own page there is never opened */
    const unsigned char *uuid;  /* of the GPU, 16 bytes */
    const char *uuid_text;      /* the same, as nvidia-smi prints it */
    uint64_t bytes;
    /* Until when the thread waits (CLOCK_MONOTONIC). It names the series of questions too: a
     * neighbour that gave less than was asked for is not asked again in the series. */
    uint64_t until_ns;
    uint64_t park_until_ns; /* .. and while a neighbour parks for the process. 0: no longer */
    bool waits; /* false: for no reply; and a neighbour without idle memory is not asked */
};

struct neighbour_reply {
    uint64_t bytes;
    uint64_t parked_ns; /* how long the thread waited for a neighbour that parked meanwhile */
};

enum neighbour_answer {
    NEIGHBOUR_GAVE,    /* bytes > 0 */
    NEIGHBOUR_NOTHING, /* it has none to give */
    NEIGHBOUR_BUSY,    /* all its slots are taken just now */
    NEIGHBOUR_GONE,    /* it has ended or is stopped, or does not reply; skipped for a while */
    NEIGHBOUR_ASKED,   /* without a wait: bytes is what its page shows as idle */
    NEIGHBOUR_NONE,    /* there is no neighbour left to ask */
};

/* Another process is about to be locked for a checkpoint: asks it for a flush, so that its idle
 * memory is neither saved nor restored, and waits until until_ns at most. Its bytes; 0 also where
 * it has no page. Keeps errno. */
uint64_t neighbour_flush(const char *folder, const struct page_id *self, int pid,
                         uint64_t until_ns);
/* The process is locked, or no more. Such a one gives nothing, and is asked once a minute at most,
 * because others may unlock it. Keeps errno. */
void neighbour_set_locked(int pid, bool locked);

/* Asks the next neighbour. Waits at most until w->until_ns, and for a neighbour that is not the
 * last one at most half of wait_ns. Once a neighbour parks for the process, it waits for that until
 * w->park_until_ns. Keeps errno. Any thread, with no lock of the pool's. */
enum neighbour_answer neighbour_ask(const struct neighbour_wish *w, uint64_t wait_ns,
                                    struct neighbour_reply *reply);

#endif
