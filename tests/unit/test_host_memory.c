/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/host_memory.c. */
#include "pool/host_memory.h"
#include "tests/unit/expect.h"

#include <sys/resource.h>

TEST(records_are_zero_and_apart)
{
    struct host_cache c;
    char *records[3000];
    host_cache_init(&c, 72, 72);
    for (int i = 0; i < 3000; i++) {
        records[i] = host_cache_get(&c);
        EXPECT(records[i], "there is host memory");
        EXPECT_EQ((uintptr_t)records[i] % 16, 0, "records are aligned to 16 bytes");
        for (int at = 0; at < 72; at++)
            EXPECT_EQ(records[i][at], 0, "a new record is zero");
        memset(records[i], i | 1, 72);
    }
    for (int i = 0; i < 3000; i++)
        for (int at = 0; at < 72; at++)
            EXPECT_EQ(records[i][at] & 0xff, (i | 1) & 0xff, "no record touches another");
}

/* Whole, and up to a part that others may look at. */
TEST(a_record_that_was_put_back_is_given_again_and_zero)
{
    for (int zero = 64; zero >= 40; zero -= 24) {
        struct host_cache c;
        host_cache_init(&c, 64, (size_t)zero);
        char *a = host_cache_get(&c);
        EXPECT_EQ(a[63], 0, "zero at first");
        memset(a, 0xff, 64);
        host_cache_put(&c, a);
        char *b = host_cache_get(&c);
        EXPECT(a == b, "records are recycled");
        for (int at = 0; at < 64; at++)
            EXPECT_EQ(b[at] & 0xff, at < zero ? 0 : 0xff, "zero up to the part that is kept");
    }
}

TEST(ensured_records_need_no_host_memory)
{
    struct host_cache c;
    struct rlimit before, none;
    host_cache_init(&c, 4096, 4096);
    EXPECT(host_cache_ensure(&c, 20), "there is host memory");
    getrlimit(RLIMIT_AS, &before);
    none = (struct rlimit){.rlim_cur = 1, .rlim_max = before.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    unsigned got = 0;
    while (got < 100 && host_cache_get(&c))
        got++;
    errno = 77;
    bool more = host_cache_ensure(&c, 1);
    int after = errno;
    setrlimit(RLIMIT_AS, &before);
    EXPECT(got >= 20, "what was ensured is there when the host has no more");
    EXPECT(got < 100, "the limit was felt");
    EXPECT(!more, "a shortage is told");
    EXPECT_EQ(after, 77, "errno is left alone");
    EXPECT(host_cache_get(&c), "a shortage does not last");
}

/* Each batch ends with a few that were never used when more than those are ensured. */
TEST(nothing_is_lost_between_batches)
{
    struct host_cache c;
    host_cache_init(&c, 4096, 4096);
    for (int round = 0; round < 50; round++) {
        EXPECT(host_cache_ensure(&c, 5), "there is host memory");
        size_t before = c.count;
        EXPECT(host_cache_get(&c) && host_cache_get(&c) && host_cache_get(&c), "as ensured");
        EXPECT_EQ(c.count, before - 3, "three are gone");
    }
    size_t left = c.count;
    for (size_t i = 0; i < left; i++)
        EXPECT(host_cache_get(&c), "all that is counted is there");
    EXPECT_EQ((150 + left) % 15, 0, "whole batches of 15 in all");
}

static unsigned visited;

static void visit(void *record)
{
    visited++;
    ((char *)record)[63] = 1;
}

TEST(all_records_are_found_and_free_again_at_once)
{
    enum { COUNT = 2500, BATCH = 1023 };
    struct host_cache c;
    host_cache_init(&c, 64, 40);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            EXPECT(host_cache_get(&c), "there is host memory");
        visited = 0;
        host_cache_each(&c, visit);
        EXPECT_EQ(visited, COUNT, "each that was ever used, once");
        host_cache_reclaim(&c);
        EXPECT_EQ(c.count, 3 * BATCH,
                  "all are free, those never used too, and no memory was added");
    }
    for (unsigned i = 0; i < 3 * BATCH; i++) {
        const char *record = host_cache_get(&c);
        EXPECT(record && !record[0] && record[63] == (i < COUNT),
               "as zero as ever, and kept behind that");
    }
    EXPECT_EQ(c.count, 0, "there were no more");
}

TEST(pages_are_zero)
{
    char *pages = host_pages(10000);
    for (int i = 0; i < 10000; i++)
        EXPECT_EQ(pages[i], 0, "new pages are zero");
    host_pages_free(pages, 10000);
    host_pages_free(NULL, 10000);
}

PLAY_TESTS
