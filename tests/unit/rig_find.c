/* SPDX-License-Identifier: BSD-2-Clause */
/* Each allocation of a test looks at all blocks: optimized in every build, and no sanitizer sees
 * it. Else half of the time of some tests goes there. */
#include "tests/unit/rig.h"

struct rig_block *rig_find(struct rig *r, uint64_t addr, uint64_t size_bytes)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->blocks[i].addr < addr + size_bytes &&
            addr < r->blocks[i].addr + r->blocks[i].size_bytes)
            return &r->blocks[i];
    return NULL;
}
