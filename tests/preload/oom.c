/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program fills the device. The error is the driver's, and as many blocks fit as natively
 * (within 5 %). Idle memory of other sizes does not count as taken. After everything is freed, it
 * all fits again.
 */
#include "tests/preload/scene.h"

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
    for (int i = 0; i < n; i++)
        REQUIRE(gpu_free(blocks[i]));
}

int main(void)
{
    static const size_t divisors[] = {24, 40, 60, 24};
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    uint64_t keep = 0;
    int failed = 0;
    scene_start(1, 120);
    REQUIRE(gpu_malloc(&keep, 4096));
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
    REQUIRE(gpu_malloc(&blocks[0], free_bytes / 10 * 9 / (2 * MIB) * (2 * MIB)));
    REQUIRE(gpu_free(blocks[0]));
    printf("%zu wrong bytes\n", scene_wrong_bytes(keep, 4096, 9));
    REQUIRE(gpu_free(keep));
    return failed;
}
