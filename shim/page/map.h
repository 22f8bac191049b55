/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The mapping of the process's page. Only the kernel uses it: it copies to the page and from it,
 * and waits at its words (page.h, step 1). A call fails where there is no page, in a forked child,
 * and where a part of the file is missing. Each copy has a full barrier before and behind it. No
 * lock.
 */
#ifndef SHIM_PAGE_MAP_H
#define SHIM_PAGE_MAP_H

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
 * address. Then the thread of the bell wakes, and waits at the new file, but not if the file before
 * was cut off. */
bool page_copy_map(int fd, const struct stat *file);
/* How many files were mapped so far. Any thread. */
unsigned page_copy_count(void);
/* Since the last call, could a thread not be woken that waited at a file before? It waits until the
 * process ends. To be called by the thread that maps. */
bool page_copy_left_waiter(void);
/* Before there is a thread of the bell. */
void page_copy_unmap(void);

/* Copies at most PAGE_PIECES_MAX pieces to the page, in this order. False: not all of it. */
bool page_put_all(const struct page_piece *pieces, unsigned num_pieces);
bool page_put(const void *from, size_t offset, size_t size_bytes);
bool page_get(void *to, size_t offset, size_t size_bytes);

/* Waits until a thread of any process wakes the waiters of the word. Does not wait if the word
 * differs from the value. May return early. False: the word is not there. */
bool page_wait(size_t offset, uint32_t value);
void page_wake(size_t offset);

#endif
