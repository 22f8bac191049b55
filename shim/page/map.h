/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The mapping of the process's own page (copy.h). A forked child has none. No lock.
 */
#ifndef SHIM_PAGE_MAP_H
#define SHIM_PAGE_MAP_H

#include "shim/page/copy.h"

#include <stdbool.h>
#include <sys/stat.h>

/* NULL: there is none. Where there was one in the parent of a fork, no copy succeeds. */
struct page *page_own(void);

/* Maps the file, of struct page, if fd is still a descriptor of *file. The mapping stays, because
 * the thread of the doorbell uses it. Another file takes the place of the one before, at the same
 * address. Then the thread of the doorbell wakes, and waits at the new file, but not if the file
 * before was cut off. */
bool page_map(int fd, const struct stat *file);
/* How many files were mapped so far. Any thread. */
unsigned page_map_count(void);
/* Since the last call, could a thread not be woken that waited at a file before? It waits until the
 * process ends. To be called by the thread that maps. */
bool page_map_left_waiter(void);
/* Before there is a thread of the doorbell. */
void page_unmap(void);

#endif
