/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * SIGUSR1 half way: idle memory goes back to the driver, as another process can see; live blocks
 * keep their addresses and contents, and the program goes on. Bare, memory went back at its free
 * and there is no one to signal.
 */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"

#include <signal.h>

enum { LIVE = 24, IDLE = 8 };

int main(void)
{
    uint64_t live[LIVE];
    uint64_t idle[IDLE];
    uint32_t wrong = 0;
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    if (scene_preloaded()) {
        /* The first allocation brings the handler. */
        uint64_t first = 0;
        struct sigaction action;
        REQUIRE(gpu_malloc(&first, 4096));
        REQUIRE(gpu_free(first));
        REQUIRE(sigaction(SIGUSR1, NULL, &action));
        EXPECT(action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    }
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < LIVE; i++) {
            REQUIRE(gpu_malloc(&live[i], (i + 1) * 64 * KIB));
            REQUIRE(gpu_fill(live[i], (i + 1) * 2 * KIB, i + 7, NULL));
        }
        for (int i = 0; i < IDLE; i++) {
            REQUIRE(gpu_malloc(&idle[i], 64 * MIB));
            REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
        }
        REQUIRE(gpu_sync());
        size_t full = observer_free_bytes(&observer);
        for (int i = 0; i < IDLE; i++)
            REQUIRE(gpu_free(idle[i]));
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        size_t want = full + (IDLE * 64 - 32) * MIB;
        int waits = 0;
        while (observer_free_bytes(&observer) < want && waits++ < 300)
            scene_sleep_ms(10);
        printf("round %d: others see it %s", round,
               observer_free_bytes(&observer) >= want ? "free" : "taken");
        for (uint32_t i = 0; i < LIVE; i++)
            wrong += scene_wrong_words(live[i], (i + 1) * 2 * KIB, i + 7, NULL);
        printf(", %u wrong words\n", wrong);
        for (uint32_t i = 0; i < LIVE; i++)
            REQUIRE(gpu_free(live[i]));
    }
    observer_stop(&observer);
    return wrong != 0;
}
