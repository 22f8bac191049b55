/* SPDX-License-Identifier: BSD-2-Clause */
/* How much memory there is, and what a program gets of it. */
#include "tests/preload/scene.h"

/* The program fills the device. The error is the driver's, and as many blocks fit as natively
 * (within 5 %). Idle memory of other sizes does not count as taken. After everything is freed, it
 * all fits again. */

enum { MOST = 4096 };

static uint64_t blocks[MOST];

static int fill_up(size_t block_bytes, int *rc)
{
    int n = 0;
    for (*rc = 0; n < MOST; n++) {
        *rc = gpu_malloc(&blocks[n], block_bytes);
        if (*rc != 0)
            break;
    }
    return n;
}

static void free_all(int n)
{
    FREE_ALL(blocks, n);
}

ACT(oom)
{
    static const size_t divisors[] = {24, 40, 60, 24};
    size_t free_bytes = 0, total_bytes = 0;
    int failed = 0;
    scene_start(1, 120);
    uint64_t keep = NEW_BLOCK(4096);
    REQUIRE(gpu_memset(keep, 9, 4096));
    REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
        int rc = 0;
        size_t block_bytes = free_bytes / divisors[i] / (2 * MIB) * (2 * MIB);
        int fits = (int)(free_bytes / block_bytes);
        int n = fill_up(block_bytes, &rc);
        printf("a %zuth of it: error %d, last error %d, then %d; %s\n", divisors[i], rc,
               gpu_last_error(), gpu_last_error(),
               n * 100 >= fits * 95 && n <= fits ? "as many as fit" : "not as many as fit");
        failed += n * 100 < fits * 95;
        free_all(n);
    }
    printf("more than there is: %d\n", gpu_malloc(&blocks[0], total_bytes + 1));
    printf("last error %d\n", gpu_last_error());
    blocks[0] = NEW_BLOCK(free_bytes / 10 * 9 / (2 * MIB) * (2 * MIB));
    printf("%zu wrong bytes\n", scene_wrong_bytes(keep, 4096, 9));
    return failed;
}

/* A device is nearly full for a long time. Blocks of all sizes come and go in random order, with
 * up to 80 % of its memory live. Every allocation has to succeed, as it does natively, however the
 * idle memory is cut up. */

enum { SLOTS = 256, STEPS = 3000 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

ACT(capacity)
{
    static struct {
        uint64_t ptr;
        size_t size_bytes;
    } slots[SLOTS];
    uint32_t random = 2024;
    size_t live_bytes = 0;
    int refused = 0, skipped = 0;
    scene_start(1, 200);
    size_t free_bytes = FREE_BYTES();
    const size_t most_bytes = free_bytes / 10 * 8;
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = next_random(&random) % SLOTS;
        if (slots[i].ptr != 0) {
            REQUIRE(gpu_free(slots[i].ptr));
            live_bytes -= slots[i].size_bytes;
            slots[i].ptr = 0;
        }
        /* Many small ones, few large ones, up to a twentieth of the device. */
        uint32_t shift = next_random(&random) % 12;
        size_t size_bytes = 1 + (free_bytes / 20 >> shift) * (next_random(&random) % 1000) / 1000;
        if (live_bytes + size_bytes > most_bytes) {
            skipped++;
            continue;
        }
        if (gpu_malloc(&slots[i].ptr, size_bytes) != 0) {
            slots[i].ptr = 0;
            refused++;
            continue;
        }
        slots[i].size_bytes = size_bytes;
        live_bytes += size_bytes;
        REQUIRE(gpu_memset_async(slots[i].ptr, 1, size_bytes < 512 ? size_bytes : 512, NULL));
    }
    printf("%d refused\n", refused);
    EXPECT(skipped > 0);
    for (int i = 0; i < SLOTS; i++)
        REQUIRE(gpu_free(slots[i].ptr));
    return refused != 0;
}

/* What the program reads of free and total memory. Used and free add up to no more than the total.
 * Either pointer may be NULL. An allocation lowers what is free, and its free restores it. */

ACT(meminfo)
{
    size_t before = 0, during = 0, after = 0, total = 0, total_alone = 0;
    scene_start(1, 60);
    /* What the first allocation and copy bring along is not this scene's. */
    uint64_t warm = NEW_BLOCK(1 * MIB);
    REQUIRE(gpu_memset(warm, 0, 1 * MIB));
    REQUIRE(gpu_sync());

    REQUIRE(gpu_mem_info(&before, &total));
    printf("NULL free: %d\n", gpu_mem_info(NULL, &total_alone));
    printf("total is %s\n", total == total_alone ? "one" : "two");
    printf("NULL total: %d\n", gpu_mem_info(&during, NULL));
    printf("both NULL: %d\n", gpu_mem_info(NULL, NULL));
    EXPECT(before <= total);

    uint64_t block = NEW_BLOCK(256 * MIB);
    REQUIRE(gpu_mem_info(&during, &total));
    printf("256 MiB are %s\n", during + 256 * MIB <= before + 2 * MIB ? "missed" : "not missed");
    printf("and no more than %s\n", during + 300 * MIB >= before ? "them" : "that much");
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_mem_info(&after, &total));
    EXPECT(after <= total);
    printf("freed, they are %s\n", after + 2 * MIB >= before ? "back" : "still missed");

    for (int i = 0; i < 50; i++) {
        size_t size_bytes = ((size_t)i % 7 + 1) * 3 * MIB;
        block = NEW_BLOCK(size_bytes);
        REQUIRE(gpu_mem_info(&during, &total));
        EXPECT(during <= total && total - during >= size_bytes);
        REQUIRE(gpu_free(block));
    }
    return 0;
}

/* A kernel runs until the host lets it go, and the host allocates meanwhile. */

static uint64_t ms_of(uint64_t size_bytes, int *rc)
{
    uint64_t begin_ns = scene_now_ns(), block;
    *rc = gpu_malloc(&block, size_bytes);
    return (scene_now_ns() - begin_ns) / MS_NS;
}

static const char *in_time(uint64_t ms)
{
    return ms < 500 ? "at once" : "late";
}

/* It runs since before the first allocation. Nothing was freed, so the error does not wait. */
ACT(full_beside_older_work)
{
    int rc = 0;
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    uint32_t *word = scene_hold(stream);
    size_t free_bytes = FREE_BYTES();
    NEW_BLOCK(2 * MIB);
    for (int i = 0; i < 3; i++) {
        uint64_t ms = ms_of(free_bytes + (size_t)i * MIB, &rc);
        printf("%d %s\n", rc, in_time(ms));
    }
    scene_let_go(word);
    REQUIRE(gpu_sync());
    return 0;
}

/* No further object of the driver's can be made by then: there is no memory for one. */
static int refill_full_device(const char *no_more)
{
    int rc = 0, n = 0;
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    uint32_t *word = scene_hold(stream);
    n = fill_up(FREE_BYTES() / 16 / (2 * MIB) * (2 * MIB), &rc);
    scene_let_go(word);
    REQUIRE(gpu_sync());
    if (scene_simulated())
        REQUIRE(SIM(simFailSpec)(no_more));
    free_all(n);
    word = scene_hold(stream);
    uint64_t ms = ms_of(FREE_BYTES() / 4, &rc);
    printf("%d %s\n", rc, in_time(ms));
    scene_let_go(word);
    REQUIRE(gpu_sync());
    return rc != 0;
}

ACT_IS(ACT(full_without_events), refill_full_device("cuEventCreate:1+:2"))
ACT_IS(ACT(full_without_streams), refill_full_device("cuStreamCreate:1+:2"))
