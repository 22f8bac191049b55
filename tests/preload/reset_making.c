/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device is reset, and its primary context retained anew, while other threads allocate for the
 * first time in it: what they get is theirs to lose; but the memory of the life after that works,
 * every time.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>

enum { ROUNDS = 150, ROUNDS_REAL = 6, THREADS = 2, BYTES = 65536 };

static CUcontext primary;
static atomic_int started;

static int allocate(int index, void *context)
{
    unsigned delay = *(unsigned *)context;
    uint64_t block = 0;
    if (index == 0) {
        while (atomic_load(&started) < THREADS)
            ;
        for (volatile unsigned i = 0; i < delay; i++)
            ;
        REQUIRE(cuDevicePrimaryCtxReset(0));
        return 0;
    }
    REQUIRE(cuCtxSetCurrent(primary));
    atomic_fetch_add(&started, 1);
    (void)gpu_malloc(&block, BYTES); /* a context that is being reset may say anything */
    return 0;
}

static int life_after(uint32_t round)
{
    uint64_t block = 0;
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    unsigned char byte = (unsigned char)(round % 200);
    int failed = gpu_malloc(&block, BYTES) != 0 || gpu_memset(block, byte, BYTES) != 0 ||
                 scene_wrong_bytes(block, BYTES, byte) != 0 || gpu_free(block) != 0;
    REQUIRE(cuDevicePrimaryCtxReset(0));
    return failed;
}

int main(void)
{
    int failed = 0;
    int count = 0;
    scene_watchdog(120);
    if (gpu_device_count(&count) != 0 || count < 1)
        scene_skip("no device");
    uint32_t rounds = scene_simulated() ? ROUNDS : ROUNDS_REAL;
    for (uint32_t round = 0; round < rounds; round++) {
        unsigned delay = round * 2000;
        atomic_store(&started, 0);
        REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
        REQUIRE(scene_threads(THREADS + 1, allocate, &delay));
        failed += life_after(round);
    }
    printf("%d of the lives afterwards did not work\n", failed);
    return failed != 0;
}
