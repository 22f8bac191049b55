/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Requests of other processes on the page, their replies, and the thread that waits at the
 * doorbell. Why none is lost: Note [Requests] in README.md. The control thread alone calls these
 * functions. No lock.
 */
#ifndef SHIM_PAGE_SERVER_H
#define SHIM_PAGE_SERVER_H

#include "shim/page/layout.h"
#include "shim/process/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* So long the thread of the doorbell rests after each ring. */
#define PAGE_REST_NS MS_NS

/* A request, copied. */
struct page_request {
    unsigned slot;
    unsigned file; /* page_map_count: the sequences of each file begin at 0 */
    uint32_t sequence;
    size_t ask_bytes;
    char ask[PAGE_ASK_BYTES + 1]; /* with a NUL; other bytes may be anything */
};

struct page_answer {
    enum page_reply code;
    uint64_t value;
    const char *text;
    size_t text_bytes; /* at most PAGE_REPLY_BYTES */
};

/* Copies the request in a slot (below PAGE_SLOTS). False: there is none that was not served. */
bool page_read_request(unsigned slot, struct page_request *out);
/* A park has begun for the request: its asker waits on for the answer, past its time. */
void page_note_park(const struct page_request *r);
/* Writes the answer, wakes the asker, and counts the request as served. Does nothing if the page
 * has another file since the request was read. */
void page_answer_request(const struct page_request *r, const struct page_answer *answer);
/* Before page_renew: refuses all requests, those that wait too. No reply comes at a file that was
 * replaced, so the askers have to ask at the new one. */
void page_refuse_requests(void);

/* Makes the thread that calls on_request() whenever the doorbell was rung. False: there is no such
 * thread, so requests are not heard. on_request must take no lock. */
bool page_start_doorbell(void (*on_request)(void));
/* After page_renew: makes another thread if the one there was waits at a file that was cut off, or
 * could not be made. False: there is none that hears requests. */
bool page_renew_doorbell(void);

#endif
