/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Retained copies: after a wake the store keeps its bytes (GPUCACHE_PARK=retain:SIZE), and the next
 * park copies only the pages that differ from them. Then the store has one row for each page of
 * HASH_PAGE_BYTES that holds anything, and its place n is page n of the store's bytes. This file
 * knows of each place which hash its bytes have, and whether they belong to memory that is away. It
 * lists the pages of a park, and gives each its place.
 *
 * Why a page that is not copied has its bytes in the store:
 *  1. What a place holds is known only by retain_saved. It is called after the copies of a park
 *     that no work disturbed, with the hash that the memory had in the same park. Nothing writes
 *     the place from then on but a copy of another park, before which retain_place forgets it.
 *  2. The page has the hash of its bytes now: it was hashed behind quiet_await, and is not written
 *     before the gate opens or the memory is away.
 *  3. Equal hashes of one key are equal bytes (hash.h). So the page's bytes are the place's,
 *     whatever happened to the memory or to its address meanwhile. The address is only how the
 *     place is found.
 *  4. A page that is away has its place until the wake: retain_place gives away only places of
 *     other pages.
 * Pages whose context does not hash, or whose work did not end in time, are copied.
 *
 * A page is copied whole, with the free memory in it. So a wake may bring old bytes of the program
 * into a block that was allocated meanwhile (rule 2 of pool/park.c).
 * No lock: the park thread alone calls this.
 */
#ifndef SHIM_RETAIN_H
#define SHIM_RETAIN_H

#include "shim/context/context.h"
#include "shim/park/store.h"
#include "shim/process/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETAIN_NS (600 * SEC_NS)

/* The store, which has just begun, is to have pages. False: there is no host memory for what is
 * known of them; then it has ranges. */
bool retain_begin(const struct store *s);
/* The store is freed. */
void retain_end(void);
/* Has the store pages? */
bool retain_is_on(void);

/* The pages of a park: first none, then those that a range shares bytes with. Ranges of one pool
 * come by address. False: there are more than the store has room for. */
void retain_list_begin(void);
bool retain_list(uint64_t addr, uint64_t size_bytes);
size_t retain_num_pages(void);
/* Hashes the listed pages from `first` on, which are the context's, behind quiet_await. goes_on: as
 * in copy.h; then the rest have no hash. */
void retain_hash(struct context *c, size_t first, bool (*goes_on)(void));
/* All pages are listed: finds their places. */
void retain_match(struct store *s);
/* Has the store the bytes of the page already? */
bool retain_has_bytes(size_t page);
/* Where the bytes of the page are to go: a row for copy_run. False, with `why`: the host has no
 * room. */
bool retain_place(struct store *s, size_t page, struct store_row *to, char *why, size_t why_bytes);
/* The pages from `first` to `end` have their bytes in the store. */
void retain_saved(size_t first, size_t end);
/* The park is over, and no page is listed any more. Undone: they are not away. Left: those that the
 * driver did not unmap are not away either, and a wake must not write to them. */
void retain_undo(void);
void retain_left(bool (*is_away)(uint64_t addr));

/* Has the row bytes of memory that is away? */
bool retain_is_away(const struct store_row *row);
/* Nothing is away. Keeps at most so many bytes of the store, until retain_is_over, which is
 * RETAIN_NS after the wake. */
void retain_keep(struct store *s, uint64_t most_bytes, uint64_t now_ns);
bool retain_is_over(uint64_t now_ns);

#endif
