/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/hash.c: the C function gives what the definition in hash.h says, and what the simulated
 * driver gives for the kernel; every byte of a page and of the key counts. kernel.py
 * tests the kernel's own text. */
#include "shim/park/hash.h"
#include "tests/sim/page_hash.h"
#include "tests/unit/cases.h"

#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1
#endif

static uint32_t page[HASH_PAGE_BYTES / 4], key[HASH_KEY_BYTES / 4];

static void fill(uint32_t *words, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 4; i++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        words[i] = (uint32_t)(seed >> 32);
    }
}

static int make(void **state)
{
    fill(page, sizeof page, 1);
    fill(key, sizeof key, 2);
    return 0;
}

/* With products of 16 bits, which no sum carries out of. */
static uint64_t product(uint32_t a, uint32_t b)
{
    uint64_t low = (uint64_t)(a & 0xffff) * (b & 0xffff), high = (uint64_t)(a >> 16) * (b >> 16);
    uint64_t middle = (uint64_t)(a >> 16) * (b & 0xffff) + (uint64_t)(a & 0xffff) * (b >> 16);
    return low + (middle << 16) + (high << 32);
}

static uint64_t lane(unsigned j)
{
    uint64_t sum = 0;
    for (unsigned column = 0; column < 1024; column += 2)
        for (unsigned row = 512; row-- > 0;) {
            size_t at = row * 1024 + column, with = (row + j) * 1024 + column;
            sum += product((uint32_t)((uint64_t)page[at] + key[with]),
                           (uint32_t)((uint64_t)page[at + 1] + key[with + 1]));
        }
    return sum;
}

TEST(it_is_what_its_definition_says)
{
    struct hash h = hash_page(page, key);
    for (unsigned j = 0; j < HASH_LANES; j++)
        assert_int_equal(h.lanes[j], lane(j));
}

TEST(the_simulated_kernel_gives_the_same)
{
    struct hash here = hash_page(page, key), there;
    page_hash(page, key, there.lanes);
    assert_true(hash_is_equal(&here, &there));
    assert_int_equal(PAGE_HASH_KEY, HASH_KEY_BYTES);
    assert_int_equal(PAGE_HASH_PAGE, HASH_PAGE_BYTES);
}

/* Each lane, since two pages are equal only if all are. */
static void expect_all_differ(const struct hash *a, const struct hash *b)
{
    for (unsigned j = 0; j < HASH_LANES; j++)
        assert_int_not_equal(a->lanes[j], b->lanes[j]);
}

TEST(each_byte_of_a_page_counts)
{
    struct hash before = hash_page(page, key);
    for (size_t i = 0; i < 200; i += FEWER_ROUNDS) {
        size_t at = i < 100 ? i * 20963 : HASH_PAGE_BYTES - 1 - (i - 100) * 5;
        ((uint8_t *)page)[at] ^= (uint8_t)(1u << i % 8);
        struct hash after = hash_page(page, key);
        ((uint8_t *)page)[at] ^= (uint8_t)(1u << i % 8);
        expect_all_differ(&before, &after);
    }
}

TEST(words_may_not_change_places)
{
    static const size_t distances[] = {1, 2, 4, 1024, 2048, 262144};
    struct hash before = hash_page(page, key);
    for (size_t i = 0; i < sizeof distances / sizeof distances[0]; i++) {
        uint32_t first = page[8], second = page[8 + distances[i]];
        page[8] = second;
        page[8 + distances[i]] = first;
        struct hash after = hash_page(page, key);
        page[8] = first;
        page[8 + distances[i]] = second;
        expect_all_differ(&before, &after);
    }
}

/* Who does not know the key does not know which pages are alike under it. */
TEST(another_key_gives_another_hash)
{
    struct hash before = hash_page(page, key);
    for (size_t row = 0; row < HASH_ROWS + HASH_LANES - 1; row += 103) {
        key[row * 1024 + 5]++;
        struct hash after = hash_page(page, key);
        key[row * 1024 + 5]--;
        assert_false(hash_is_equal(&before, &after));
    }
    key[(HASH_ROWS + HASH_LANES - 2) * 1024]++; /* the last row is the last lane's */
    struct hash after = hash_page(page, key);
    assert_int_equal(before.lanes[HASH_LANES - 2], after.lanes[HASH_LANES - 2]);
    assert_int_not_equal(before.lanes[HASH_LANES - 1], after.lanes[HASH_LANES - 1]);
    key[(HASH_ROWS + HASH_LANES - 2) * 1024]--;
}

TEST(the_text_is_for_the_kernel)
{
    char entry[64];
    snprintf(entry, sizeof entry, ".entry %s(", hash_kernel);
    assert_non_null(strstr(hash_ptx, entry));
}

/* For kernel.py: the kernel, and the hash of a page with a key that it makes too. */
static int print_all(void)
{
    make(NULL);
    struct hash h = hash_page(page, key);
    printf("%llx %llx %llx %llx\n", (unsigned long long)h.lanes[0], (unsigned long long)h.lanes[1],
           (unsigned long long)h.lanes[2], (unsigned long long)h.lanes[3]);
    fputs(hash_ptx, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--print"))
        return print_all();
    return play_tests(make, NULL);
}
