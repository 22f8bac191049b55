/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The mapping of the process's page. Only the kernel uses it: it copies to the page and from it,
 * and waits at its words (page.h, step 1). A call fails where there is no page, in a forked child,
 * and where a part of the file is missing. Each copy has a full barrier before and behind it. No
 * lock.
 */
#ifndef SHIM_PAGE_COPY_H
#define SHIM_PAGE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { PAGE_PIECES_MAX = 3 };

struct page_piece {
    const void *from;
    size_t offset; /* in the page */
    size_t size_bytes;
};

/* May the process copy to its own memory that way? Sandboxes forbid it, and emulators lack it. Sets
 * errno if not. */
bool page_copy_permitted(void);

/* Maps the file, of struct page, if fd is still a descriptor of *file. The mapping stays, because
 * the thread of the bell uses it. Another file takes the place of the one before, at the same
 * address. Who waits at a word of the one before still waits there: page_copy_count tells. */
bool page_copy_map(int fd, const struct stat *file);
/* How many files were mapped so far. Any thread. */
unsigned page_copy_count(void);
/* Before there is a thread of the bell. */
void page_copy_unmap(void);

/* Copies at most PAGE_PIECES_MAX pieces to the page, in this order. False: not all of it. */
bool page_put_all(const struct page_piece *pieces, unsigned num_pieces);
bool page_put(const void *from, size_t offset, size_t size_bytes);
bool page_get(void *to, size_t offset, size_t size_bytes);

/* Waits until a thread of any process wakes the waiters of the word, and at most that long. Does
 * not wait if the word differs from the value, or is not there. May return early. False: the time
 * was up. */
bool page_wait(size_t offset, uint32_t value, uint64_t wait_ns);
void page_wake(size_t offset);

#endif
