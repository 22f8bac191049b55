/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel gpucache_page_hash gives for a page, written for itself, in the order of the
 * kernel's threads. A page has 512 rows of 1,024 words and the key 515. */
#ifndef SIM_PAGE_HASH_H
#define SIM_PAGE_HASH_H

#include <stdint.h>

#define PAGE_HASH_PAGE (UINT64_C(2) << 20)
#define PAGE_HASH_KEY (UINT64_C(515) * 4096)

void page_hash(const uint32_t *page, const uint32_t *key, uint64_t out[4]);

#endif
