/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/retain.c with the store, and a GPU of the test's: what is trusted, and what is copied
 * where. The test does what move.c does with the answers. */
#include "shim/park/hasher.h"
#include "shim/park/retain.h"
#include "tests/unit/cases.h"

#define MIB (UINT64_C(1) << 20)
#define BASE (UINT64_C(1) << 40)

enum { PAGES = 16, WHY_BYTES = 128 };

/* Device memory: each page holds one number. */
static uint64_t gpu[PAGES], key = 1;
static bool hashes = true;
static unsigned runs, longest;

static struct store store;
static char why[WHY_BYTES];
static unsigned copied;

static uint64_t address(unsigned page)
{
    return BASE + page * HASH_PAGE_BYTES;
}

uint64_t hasher_run(struct context *c, uint64_t addr, size_t num_pages, struct hash *out)
{
    runs++;
    longest = num_pages > longest ? (unsigned)num_pages : longest;
    for (size_t i = 0; i < num_pages; i++)
        out[i] = (struct hash){{gpu[(addr - BASE) / HASH_PAGE_BYTES + i], key}};
    return hashes ? key : 0;
}

static bool always(void)
{
    return true;
}

static bool never(void)
{
    return false;
}

static uint64_t *stored(uint64_t offset)
{
    return (uint64_t *)(store.bytes + offset);
}

static int begin(void **state)
{
    hashes = true;
    key = 1;
    for (unsigned i = 0; i < PAGES; i++)
        gpu[i] = 100 + i;
    return !store_begin(&store, "", PAGES * HASH_PAGE_BYTES, MIB, why, sizeof why) ||
           !retain_begin(&store);
}

static int end(void **state)
{
    retain_end();
    store_free(&store);
    return 0;
}

/* Lists the pages of a mask. */
static void list(unsigned mask, bool (*goes_on)(void))
{
    retain_list_begin();
    for (unsigned i = 0; i < PAGES; i++)
        if (mask >> i & 1)
            assert_true(retain_list(address(i), HASH_PAGE_BYTES));
    retain_hash(NULL, 0, goes_on);
    retain_match(&store);
}

static void copy_one(size_t i)
{
    struct store_row to;
    if (retain_has_bytes(i))
        return;
    assert_true(retain_place(&store, i, &to, why, sizeof why));
    *stored(to.offset) = gpu[(to.addr - BASE) / HASH_PAGE_BYTES];
    copied++;
}

static bool all_away(uint64_t addr)
{
    return addr;
}

/* A park of the pages. Returns how many were copied. */
static unsigned park(unsigned mask)
{
    list(mask, always);
    copied = 0;
    for (size_t i = 0; i < retain_num_pages(); i++)
        copy_one(i);
    retain_saved(0, retain_num_pages());
    retain_left(all_away);
    return copied;
}

/* A wake: each page of the mask has its bytes in the store. */
static void wake(unsigned mask, uint64_t keeps)
{
    for (unsigned i = 0; i < PAGES; i++) {
        const struct store_row *row = store_find(&store, address(i), address(i) + 1);
        assert_int_equal(row && retain_is_away(row), mask >> i & 1);
        if (mask >> i & 1)
            assert_int_equal(*stored(row->offset), gpu[i]);
    }
    retain_keep(&store, keeps, 5);
}

/* A park that copies so many of the pages, and a wake that keeps all. */
static void expect_copied(unsigned mask, unsigned count)
{
    assert_int_equal(park(mask), count);
    wake(mask, UINT64_MAX);
}

TEST_WITH(what_differs_is_copied, begin, end)
{
    expect_copied(0xff, 8);
    expect_copied(0xff, 0);
    gpu[3]++;
    expect_copied(0xff, 1);
    for (unsigned i = 0; i < PAGES; i++)
        gpu[i]++;
    expect_copied(0xff, 8);
    assert_int_equal(store.used_bytes, 8 * HASH_PAGE_BYTES);
}

TEST_WITH(ranges_are_listed_by_pages, begin, end)
{
    retain_list_begin();
    assert_true(retain_list(address(0) + 512, 512));
    assert_true(retain_list(address(0) + MIB, 2 * MIB)); /* the same page, and the next */
    assert_true(retain_list(address(3) - 1, 2));
    assert_int_equal(retain_num_pages(), 4);
    runs = longest = 0;
    retain_hash(NULL, 0, always);
    assert_int_equal(runs, 1);
    assert_int_equal(longest, 4);
    retain_list_begin();
    assert_true(retain_list(address(0), HASH_PAGE_BYTES * PAGES));
    assert_false(retain_list(address(PAGES), 1));
    retain_list_begin();
}

/* The places of pages that are gone are given to others, and what is away keeps its own. */
TEST_WITH(places_go_from_hand_to_hand, begin, end)
{
    expect_copied(0x00ff, 8);
    expect_copied(0xff00, 8);
    assert_int_equal(store.used_bytes, 8 * HASH_PAGE_BYTES);
    assert_int_equal(park(0x0ff0), 4);
    assert_int_equal(park(0x000f), 4); /* joins */
    wake(0x0fff, UINT64_MAX);
    assert_int_equal(store.used_bytes, 12 * HASH_PAGE_BYTES);
    expect_copied(0x0fff, 0);
}

TEST_WITH(an_equal_hash_of_another_key_is_another, begin, end)
{
    park(0xf);
    wake(0xf, UINT64_MAX);
    key = 2;
    expect_copied(0xf, 4);
    expect_copied(0xf, 0);
}

TEST_WITH(without_hashes_all_is_copied, begin, end)
{
    hashes = false;
    for (int i = 0; i < 2; i++) {
        expect_copied(0xf, 4);
    }
    hashes = true;
    expect_copied(0xf, 4); /* what was copied without one is not known */
    expect_copied(0xf, 0);
}

/* A place that a copy may have written in part is not known any more. */
TEST_WITH(a_copy_that_stops_is_forgotten, begin, end)
{
    struct store_row to;
    park(0xf);
    wake(0xf, UINT64_MAX);
    gpu[1] = 7;
    list(0xf, always);
    assert_true(retain_place(&store, 1, &to, why, sizeof why));
    *stored(to.offset) = 999;
    retain_undo();
    retain_keep(&store, UINT64_MAX, 5);
    gpu[1] = 101;
    expect_copied(0xf, 1);
    list(0xf, never); /* nothing is hashed, so nothing is known to be equal */
    assert_false(retain_has_bytes(0));
    retain_undo();
}

static bool is_high(uint64_t addr)
{
    return addr >= address(2);
}

TEST_WITH(pages_that_stay_are_not_away, begin, end)
{
    list(0xf, always);
    for (size_t i = 0; i < retain_num_pages(); i++)
        copy_one(i);
    retain_saved(0, retain_num_pages());
    retain_left(is_high);
    wake(0xc, UINT64_MAX);
    expect_copied(0xf, 0);
}

TEST_WITH(no_more_is_kept_than_allowed, begin, end)
{
    assert_int_equal(park(0xff), 8);
    wake(0xff, 3 * HASH_PAGE_BYTES + 1);
    assert_int_equal(store.num_rows, 3);
    assert_int_equal(store.usable_bytes, 3 * HASH_PAGE_BYTES);
    assert_int_equal(park(0xff), 5);
    wake(0xff, 0);
    assert_int_equal(store.num_rows, 0);
    expect_copied(0xff, 8);
}

TEST_WITH(copies_are_old_after_a_while, begin, end)
{
    park(0xf);
    retain_keep(&store, UINT64_MAX, 1000);
    assert_false(retain_is_over(1000 + RETAIN_NS - 1));
    retain_keep(&store, UINT64_MAX, 5000); /* a park that was refused makes them no younger */
    assert_true(retain_is_over(1000 + RETAIN_NS));
    park(0xf);
    retain_keep(&store, UINT64_MAX, 5000);
    assert_false(retain_is_over(1000 + RETAIN_NS));
}

PLAY_TESTS
