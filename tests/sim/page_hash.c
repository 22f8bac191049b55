/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/page_hash.h"

#include <string.h>

enum { ROWS = 512, WORDS = 1024, LANES = 4 };

void page_hash(const uint32_t *page, const uint32_t *key, uint64_t out[4])
{
    memset(out, 0, LANES * sizeof *out);
    for (unsigned row = 0; row < ROWS; row++)
        for (unsigned pair = 0; pair < WORDS; pair += 2) {
            const uint32_t *m = page + row * WORDS + pair, *k = key + row * WORDS + pair;
            for (unsigned lane = 0; lane < LANES; lane++) {
                uint32_t left = m[0] + k[lane * WORDS], right = m[1] + k[lane * WORDS + 1];
                out[lane] += (uint64_t)left * right;
            }
        }
}
