/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Access to a mapped page, the process's own or another one's. The page is mapped for the kernel
 * alone: it copies by process_vm_readv and process_vm_writev, and waits by futexes (Note [Foreign
 * pages], step 1). Where a part of the file is missing or its file system is full, these calls
 * fail. A load or store would raise SIGBUS. They fail too where `page` is NULL. Each copy has a
 * full barrier before and behind it. No state, no lock.
 */
#ifndef SHIM_PAGE_COPY_H
#define SHIM_PAGE_COPY_H

#include "shim/page/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_PIECES_MAX = 4 };

struct page_piece {
    const void *from;
    size_t offset; /* in the page */
    size_t size_bytes;
};

/* The offset of a field of a slot in the page. */
#define PAGE_SLOT_OFFSET(slot, field)                                                              \
    (offsetof(struct page, slots) + (slot) * sizeof(struct page_slot) +                            \
     offsetof(struct page_slot, field))

/* May the process copy to its own memory that way? Sandboxes forbid it, and emulators lack it. Sets
 * errno if not. */
bool page_copy_permitted(void);

/* Copies at most PAGE_PIECES_MAX pieces to the page, in this order. False: not all of it. */
bool page_put_all(struct page *page, const struct page_piece *pieces, unsigned num_pieces);
bool page_put(struct page *page, const void *from, size_t offset, size_t size_bytes);
bool page_get(struct page *page, void *to, size_t offset, size_t size_bytes);

/* Waits until a thread of any process wakes the waiters of the word, or until the time
 * (clock_now_ns). Does not wait if the word differs from the value. May return early. False: the
 * word is not there. */
bool page_wait(struct page *page, size_t offset, uint32_t value, uint64_t until_ns);
void page_wake(struct page *page, size_t offset);

#endif
