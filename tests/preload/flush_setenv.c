/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * GPUCACHE_EMPTY_CACHE set by the running program in its own environment: idle memory is back with
 * the driver after the next allocation. Bare, the variable means nothing and nothing was kept.
 */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"

static void request(int round)
{
    static char text[] = "GPUCACHE_EMPTY_CACHE=all";
    if (round == 0)
        REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "1", 1));
    else if (round == 1)
        REQUIRE(putenv(text));
    else
        REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "device=0", 1));
}

int main(void)
{
    enum { IDLE = 6 };
    uint64_t idle[IDLE];
    uint64_t live = 0;
    uint64_t next = 0;
    uint32_t wrong = 0;
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    REQUIRE(gpu_malloc(&live, 256 * KIB));
    REQUIRE(gpu_fill(live, 16 * KIB, 8, NULL));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < IDLE; i++) {
            REQUIRE(gpu_malloc(&idle[i], 64 * MIB));
            REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
        }
        REQUIRE(gpu_sync());
        size_t full = observer_free_bytes(&observer);
        for (int i = 0; i < IDLE; i++)
            REQUIRE(gpu_free(idle[i]));
        request(round);
        REQUIRE(gpu_malloc(&next, 4096));
        size_t seen = observer_free_bytes(&observer);
        printf("round %d: others see it %s\n", round,
               seen >= full + (IDLE * 64 - 32) * MIB ? "free" : "taken");
        REQUIRE(gpu_free(next));
        REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
        wrong += scene_wrong_words(live, 16 * KIB, 8, NULL);
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_free(live));
    observer_stop(&observer);
    return wrong != 0;
}
