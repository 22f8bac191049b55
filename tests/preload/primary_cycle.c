/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The primary context retained and released by the driver API: it lives as long as someone holds
 * it, its memory goes with the last one, and it can be had again.
 */
#include "tests/preload/scene.h"

int main(void)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    scene_watchdog(60);
    int count = 0;
    if (gpu_device_count(&count) != 0 || count < 1)
        scene_skip("no device");
    for (int round = 0; round < 4; round++) {
        CUcontext first = NULL;
        CUcontext second = NULL;
        unsigned flags = 0;
        int active = -1;
        uint64_t live = 0;
        uint64_t freed = 0;
        REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
        printf("round %d: active %d", round, active);
        REQUIRE(cuDevicePrimaryCtxRetain(&first, 0));
        REQUIRE(cuDevicePrimaryCtxRetain(&second, 0));
        REQUIRE(cuCtxSetCurrent(first));
        REQUIRE(gpu_malloc(&live, words * 4));
        REQUIRE(gpu_malloc(&freed, 8 * MIB));
        REQUIRE(gpu_memset(live, round, words * 4));
        REQUIRE(gpu_free(freed));
        printf(", release %d", (int)cuDevicePrimaryCtxRelease(0));
        REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
        printf(", active %d", active);
        wrong += scene_wrong_bytes(live, words * 4, (unsigned char)round) != 0;
        REQUIRE(gpu_malloc(&freed, 8 * MIB));
        REQUIRE(gpu_memset(freed, 1, 64 * KIB));
        printf(", release %d", (int)cuDevicePrimaryCtxRelease(0));
        REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
        printf(", active %d\n", active);
        REQUIRE(cuCtxSetCurrent(NULL));
    }
    printf("one release too many: %d\n", (int)cuDevicePrimaryCtxRelease(0));
    printf("%u wrong\n", wrong);
    return wrong != 0;
}
