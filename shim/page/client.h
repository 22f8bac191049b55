/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One request to one neighbour, for memory, or for a flush, through a slot of its page
 * (shim/page/layout.h). Which neighbour is asked, and what its answer means for the next
 * request, is in neighbour.h. No CUDA.
 *
 * What another process writes into its page is only data, mapped for the kernel alone (copy.h).
 *
 * A page is opened only if it is a regular file with one link, of the process's own effective user,
 * with no rights for others. All descriptors are closed before the return.
 *
 * No lock and no static data. One thread of the process may ask at a time: where a slot's lock is
 * one of the process (page/layout.h), two threads would share it.
 */
#ifndef SHIM_PAGE_CLIENT_H
#define SHIM_PAGE_CLIENT_H

#include "shim/page/dir.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct loan_request {
    const char *name;           /* of the neighbour's page */
    const struct page_id *self; /* of the asker: other pid namespaces cannot be looked into */
    const char *uuid_text;      /* of the GPU; NULL: a flush of all */
    uint64_t bytes;
    uint64_t until_ns; /* until when the thread waits (CLOCK_MONOTONIC) */
    /* .. and until when, once the neighbour parks for this request. 0: no longer. */
    uint64_t park_until_ns;
    atomic_bool
        *waits_on; /* set once it is seen to park, in case the thread waits so; may be NULL */
    bool waits;    /* false: the thread waits for no reply */
};

enum loan_request_result {
    LOAN_REPLIED,
    LOAN_SENT, /* without a wait */
    LOAN_BUSY, /* all its slots are taken just now */
    LOAN_LOST, /* it has ended or is stopped, or does not reply */
};

struct loan_reply {
    uint64_t bytes; /* the reply's value */
    bool parked;    /* a park began for the request, also where no reply came */
};

/* Where a reply is missing. */
struct loan_request_place {
    int slot; /* -1: nowhere */
    uint32_t sequence;
    ino_t file; /* of the page: each has sequences of its own */
};

/* Asks. *late is where the reply is missing, if it is. The
 * directory of the pages is open as `folder`. Any thread. */
enum loan_request_result loan_request_make(int folder, const struct loan_request *q,
                                           struct loan_reply *reply,
                                           struct loan_request_place *late);
/* Has the reply come since, or the page a new file, where none is missing? */
bool loan_request_may_repeat(int folder, const char *name, const struct loan_request_place *late);

/* Opens a neighbour's page. *st tells the file. -1: it is none that is to be read. */
int loan_request_open_page(int folder, const char *name, int access, struct stat *st);

/* A number that differs between processes and from call to call. */
uint32_t loan_request_jitter(void);

#endif
