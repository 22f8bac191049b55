/* SPDX-License-Identifier: BSD-2-Clause */
/* Frees of pointers into the middle of blocks, in one thread, while another allocates and frees
 * them. */
#include "tests/misuse/misuse.h"

#include <stdatomic.h>
#include <time.h>

enum { OBJECTS = 400, LENGTH_S = 1 };

static _Atomic uint64_t latest;
static atomic_bool over;
static atomic_int wrong_frees;

static int free_wrongly(void)
{
    int other = 0;
    uint64_t own;
    REQUIRE(gpu_malloc(&own, 8 * KIB));
    REQUIRE(gpu_free(own));
    while (!atomic_load(&over)) {
        uint64_t block = atomic_load_explicit(&latest, memory_order_relaxed);
        if (!block)
            continue;
        other += gpu_free(block + 8) != CUDA_ERROR_INVALID_VALUE;
        gpu_last_error();
        if (atomic_load_explicit(&wrong_frees, memory_order_relaxed) < INT32_MAX)
            atomic_fetch_add_explicit(&wrong_frees, 1, memory_order_relaxed);
    }
    return other;
}

static int recycle(void)
{
    static const size_t sizes[] = {512, 3 * KIB, 9 * KIB, 30 * KIB, 40 * KIB};
    static uint64_t blocks[OBJECTS];
    time_t until = time(NULL) + LENGTH_S;
    for (size_t round = 0; time(NULL) <= until || atomic_load(&wrong_frees) < 100; round++) {
        size_t count = round % 8 ? OBJECTS / 10 : OBJECTS;
        for (size_t i = 0; i < count; i++) {
            REQUIRE(gpu_malloc(&blocks[i], sizes[round % (sizeof sizes / sizeof *sizes)]));
            atomic_store_explicit(&latest, blocks[i], memory_order_relaxed);
        }
        for (size_t i = 0; i < count; i++)
            REQUIRE(gpu_free(blocks[i]));
    }
    atomic_store(&over, true);
    return 0;
}

static int run(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return index ? recycle() : free_wrongly();
}

int main(void)
{
    misuse_start();
    int other = scene_threads(2, run, NULL);
    printf("%d of the wrong frees gave another code\n", other);
    EXPECT(other == 0);
    return misuse_end();
}
