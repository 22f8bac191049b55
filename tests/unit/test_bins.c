/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/bins.c: best fit over free blocks.
 */
#include "pool/bins.h"

#include "tests/unit/expect.h"

#include <stdlib.h>

static struct bins bins;

static struct block *insert(uint64_t addr, uint64_t size_bytes)
{
    struct block *b = calloc(1, sizeof *b);
    b->addr = addr;
    b->size_bytes = size_bytes;
    list_init(&b->link);
    bins_insert(&bins, b);
    return b;
}

static int setup(void **state)
{
    bins_init(&bins);
    return 0;
}

/* Takes out whatever is left, and frees it. */
static int teardown(void **state)
{
    int rc = 0;
    for (int i = 0; i < BIN_COUNT; i++) {
        if (!(bins.map[i / 64] >> (i % 64) & 1))
            continue;
        list_for_each (n, tmp, &bins.heads[i]) {
            struct block *b = list_entry(n, struct block, link);
            bins_remove(&bins, b);
            free(b);
        }
    }
    for (int i = 0; i < BIN_COUNT / 64; i++)
        rc |= bins.map[i] != 0;
    if (rc)
        print_error("bins that are empty are marked\n");
    return rc;
}

static void nothing_is_found_in_empty_bins(void **state)
{
    EXPECT(!bins_find(&bins, 512, 512), "nothing was inserted");
    EXPECT(!bins_find(&bins, UINT64_C(1) << 40, 512), "nothing was inserted");
}

static void the_smallest_block_that_fits_is_found(void **state)
{
    struct block *blocks[40];
    /* Sizes of one bin and of several, inserted out of order. */
    for (int i = 0; i < 40; i++) {
        int k = i * 17 % 40;
        blocks[k] = insert(GRANULE_BYTES * 64 * (uint64_t)(k + 1), MIB(8) + (uint64_t)k * MIB(1));
    }
    for (int k = 0; k < 40; k++)
        EXPECT(bins_find(&bins, blocks[k]->size_bytes, 512) == blocks[k], "an exact fit is best");
    for (int k = 1; k < 40; k++)
        EXPECT(bins_find(&bins, blocks[k]->size_bytes - 512, 512) == blocks[k],
               "the next larger block is best");
    EXPECT(!bins_find(&bins, blocks[39]->size_bytes + 512, 512), "nothing is large enough");
}

static void the_smallest_of_one_bin_is_found(void **state)
{
    struct block *blocks[8];
    for (int i = 0; i < 8; i++) {
        int k = i * 3 % 8;
        blocks[k] = insert(GRANULE_BYTES * 64 * (uint64_t)(k + 1), MIB(8) + (uint64_t)k * 4096);
    }
    for (int k = 0; k < 8; k++)
        EXPECT(bins_find(&bins, blocks[k]->size_bytes, 512) == blocks[k],
               "best fit, also within a bin");
}

static void of_equal_blocks_the_lowest_is_found(void **state)
{
    insert(MIB(300), MIB(4));
    struct block *low = insert(MIB(100), MIB(4));
    insert(MIB(200), MIB(4));
    EXPECT(bins_find(&bins, MIB(4), 512) == low,
           "low addresses fill first, so that high ones empty");
}

static void a_smaller_block_of_the_same_bin_is_not_mistaken_for_a_fit(void **state)
{
    /* The bins of 1 MiB are 32 KiB apart. */
    insert(MIB(100), MIB(1));
    EXPECT(!bins_find(&bins, MIB(1) + 512, 512), "the bin's block is too small");
    struct block *b = insert(MIB(200), MIB(1) + 1024);
    EXPECT(bins_find(&bins, MIB(1) + 512, 512) == b, "the bin's other block fits");
}

static void alignment_counts(void **state)
{
    insert(MIB(100) + 512, KIB(64) + 512);
    EXPECT(!bins_find(&bins, KIB(64), KIB(64)), "no aligned part is large enough");
    struct block *b = insert(MIB(200) + 512, KIB(128) + 512);
    EXPECT(bins_find(&bins, KIB(64), KIB(64)) == b, "an aligned part is large enough");
}

static void sizes_beyond_the_last_bin_are_kept_in_it(void **state)
{
    struct block *b = insert(MIB(2), UINT64_C(1) << 45), *s = insert(MIB(4), UINT64_C(1) << 44);
    EXPECT(bins_find(&bins, UINT64_C(1) << 45, 512) == b, "a huge block is found");
    EXPECT(bins_find(&bins, UINT64_C(1) << 44, 512) == s, "the smaller of huge blocks is found");
}

static void a_removed_block_is_not_found(void **state)
{
    struct block *a = insert(MIB(100), 4096), *b = insert(MIB(200), 4096);
    bins_remove(&bins, a);
    EXPECT(bins_find(&bins, 4096, 512) == b, "the other is still there");
    bins_remove(&bins, b);
    EXPECT(!bins_find(&bins, 4096, 512), "none is left");
    free(a);
    free(b);
}

int main(void)
{
#define BINS_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        BINS_TEST(nothing_is_found_in_empty_bins),
        BINS_TEST(the_smallest_block_that_fits_is_found),
        BINS_TEST(the_smallest_of_one_bin_is_found),
        BINS_TEST(of_equal_blocks_the_lowest_is_found),
        BINS_TEST(a_smaller_block_of_the_same_bin_is_not_mistaken_for_a_fit),
        BINS_TEST(alignment_counts),
        BINS_TEST(sizes_beyond_the_last_bin_are_kept_in_it),
        BINS_TEST(a_removed_block_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
