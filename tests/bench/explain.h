/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Where the bytes are that a pool has reserved and the program does not hold.
 */
#ifndef TESTS_BENCH_EXPLAIN_H
#define TESTS_BENCH_EXPLAIN_H

#include <stdint.h>

struct pool;

struct explain {
    uint64_t reserved_bytes, requested_bytes;
    uint64_t rounding_bytes;   /* of live blocks and objects, to their size */
    uint64_t slab_free_bytes;  /* free objects and tails of slabs that hold live objects */
    uint64_t slab_empty_bytes; /* slabs with nothing live */
    uint64_t pending_bytes;
    uint64_t small_free_bytes; /* free blocks of the small zone */
    uint64_t large_free_bytes; /* free blocks of the large zone */
    uint64_t large_idle_bytes; /* of those: chunks that hold nothing else */
};

/* Takes down the state if more is reserved than ever before. */
void explain_look(struct explain *e, struct pool *p);
void explain_print(const struct explain *e);

#endif
