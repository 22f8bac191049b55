/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A keyed hash of a page of device memory, and the kernel that computes it. It says whether two
 * pages have the same bytes. Here are the arithmetic, in PTX and once more in C, and no call of the
 * driver.
 *
 * The hash is NH (of UMAC, RFC 4418) with a key that is longer than the page. A page is HASH_ROWS
 * rows of 32-bit words m, and the key is HASH_LANES - 1 rows more, of words k. Lane j is the sum
 * modulo 2^64, over all rows r and all even columns c, of
 *
 *     (m[r][c] + k[r+j][c] mod 2^32) * (m[r][c+1] + k[r+j][c+1] mod 2^32)
 *
 * Two different pages have equal hashes for at most one of 2^128 keys:
 * 1. Let a pair of words (a, b) be another one than (a', b'). Then for each number d at most one of
 *    2^32 keys (k, l) gives (a+k)(b+l) - (a'+k)(b'+l) = d modulo 2^64. For if b is not b', then b+l
 *    and b'+l differ for each l, and at most one k solves the equation. If b is b', then a is not
 *    a', and the same holds of each k.
 * 2. Let c be a column in which the pages differ, and r the last row in which they do. Lane j takes
 *    the row r+j of the key for this pair, and earlier rows for all other pairs of the column that
 *    differ. So do the lanes before it. So whatever the rest of the key is, and whatever the lanes
 *    before it gave, lane j is equal for at most one of 2^32 keys. There are four lanes.
 * 3. This holds for pages that were chosen without knowledge of the key. Nobody learns of it:
 *    hashes stay in the process, and an answer tells no more than a comparison of the bytes would.
 *    So whoever chooses the bytes makes no two pages equal. For n comparisons it is n * 2^-128.
 *
 * The kernel has one block of HASH_THREADS threads for a page. Each reads 16 bytes of each row, and
 * has the four rows of the key in registers. So it reads the key as often as the page, but from the
 * cache. It is for sm_50, so for every GPU that a driver of CUDA 12 serves.
 */
#ifndef SHIM_HASH_H
#define SHIM_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_PAGE_BYTES (UINT64_C(2) << 20)

enum {
    HASH_ROW_BYTES = 4096,
    HASH_ROWS = 512, /* of a page */
    HASH_LANES = 4,
    HASH_THREADS = 256,
    HASH_KEY_BYTES = (HASH_ROWS + HASH_LANES - 1) * HASH_ROW_BYTES, /* more than a page */
};

struct hash {
    uint64_t lanes[HASH_LANES];
};

/* gpucache_page_hash(u64 pages, u64 count, u64 key, u64 out): the hashes of so many pages, of which
 * the first begins at `pages`. One block for each page. All addresses are multiples of 16. */
extern const char hash_ptx[] __attribute__((visibility("hidden")));
extern const char hash_kernel[] __attribute__((visibility("hidden"))); /* its name */

/* The same of a page and a key on the host. */
struct hash hash_page(const void *page, const void *key);

static inline bool hash_is_equal(const struct hash *a, const struct hash *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

#endif
