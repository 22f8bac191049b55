/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pages of neighbours (neighbour.h), read one after the other: what is in the directory, and
 * the numbers of each page. No CUDA.
 *
 * One lock, for one thread of the process at a time. It guards neighbour_page and what neighbour.c
 * knows of each neighbour. All functions but the first are for the thread that holds it.
 */
#ifndef SHIM_NEIGHBOUR_PAGE_H
#define SHIM_NEIGHBOUR_PAGE_H

#include "shim/page/dir.h"
#include "shim/page/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Pages that a walk reads at the most. */
#define NEIGHBOUR_PAGES_MAX 512

/* Takes the lock, until until_ns (CLOCK_MONOTONIC) at the latest. False: it was not free. */
bool neighbour_page_lock(uint64_t until_ns);
void neighbour_page_unlock(void);

/* The numbers that the last neighbour_page_read found: the page without its slots. */
extern struct page neighbour_page;

/* f for each name in the directory, until it returns false. */
void neighbour_page_each(int folder, bool (*f)(void *arg, int folder, const char *name), void *arg);
/* Is it the name of another process's page? *its: what the name says. Of processes in another pid
 * namespace only the doorbell tells whether they live. */
bool neighbour_page_is_of_another(const char *name, const struct page_id *self,
                                  struct page_id *its);
/* False: it is no page of this version, or of another process than its name says. */
bool neighbour_page_read(int folder, const char *name, const struct page_id *its);
/* The GPU in the page that was read. uuid: 16 bytes. NULL: the process does not use it. */
const struct page_gpu *neighbour_page_gpu(const unsigned char *uuid);

#endif
