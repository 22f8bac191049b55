/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread retains, uses and releases the primary context over and over, while others allocate for
 * the first time in contexts of their own, and give up uses of the primary one: it ends with the
 * program's last release, and not later, and each of its lives has memory that works.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>
#include <time.h>

/* A real driver takes its time for each. */
enum { LIVES = 300, LIVES_REAL = 20, BLOCKS = 3, BYTES = 65536 };

static atomic_bool over;

/* In a new life nothing is current that was of the last one. */
static int live(uint32_t life, int *active_after)
{
    CUcontext primary = NULL;
    uint64_t block[BLOCKS];
    uint32_t wrong = 0;
    unsigned flags = 0;
    int failed = 0;
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    for (int i = 0; i < BLOCKS; i++) {
        failed += gpu_malloc(&block[i], BYTES) != 0 || gpu_memset(block[i], (int)life, BYTES) != 0;
        if (!failed)
            wrong += scene_wrong_bytes(block[i], BYTES, (unsigned char)life) != 0;
        if (i > 0)
            failed += gpu_free(block[i]) != 0;
    }
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, active_after));
    return failed + (wrong != 0);
}

/* The pause lets the other thread have the simulator's lock, which is not fair: without it contexts
 * pile up, each call walks all of them, and the lives take longer and longer. */
static int make_contexts(void)
{
    struct timespec pause = {.tv_nsec = 100000};
    int failed = 0;
    while (!atomic_load(&over)) {
        CUcontext own = NULL;
        uint64_t block = 0;
        REQUIRE(cuCtxCreate(&own, NULL, 0, 0));
        failed += gpu_malloc(&block, BYTES) != 0 || gpu_memset(block, 7, BYTES) != 0 ||
                  gpu_free(block) != 0;
        REQUIRE(cuCtxDestroy(own));
        nanosleep(&pause, NULL);
    }
    return failed;
}

static int either(int index, void *context)
{
    int *counts = context;
    if (index > 0)
        return make_contexts();
    uint32_t lives = scene_simulated() ? LIVES : LIVES_REAL;
    for (uint32_t life = 0; life < lives; life++) {
        int active = -1;
        counts[0] += live(life % 200, &active);
        counts[1] += active != 0;
    }
    atomic_store(&over, true);
    return 0;
}

int main(void)
{
    int counts[2] = {0};
    int count = 0;
    scene_watchdog(120);
    if (gpu_device_count(&count) != 0 || count < 1)
        scene_skip("no device");
    int failed = scene_threads(2, either, counts);
    printf("%d lives did not work, %d did not end, %d failures elsewhere\n", counts[0], counts[1],
           failed);
    return counts[0] || counts[1] || failed;
}
