/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * SIGUSR1 half way: idle memory goes back to the driver, as another process can see; live blocks
 * keep their addresses and contents, and the program goes on. Bare, memory went back at its free
 * and there is no one to signal.
 */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LIVE = 24, IDLE = 8 };

static bool has_control_thread(void)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file) {
            found |= fgets(name, sizeof name, file) && strcmp(name, "gpucache\n") == 0;
            fclose(file);
        }
    }
    if (tasks)
        closedir(tasks);
    return found;
}

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
        /* Nothing was freed, so there is nothing to give back and no thread that would. */
        EXPECT(!has_control_thread());
        REQUIRE(raise(SIGUSR1));
        REQUIRE(gpu_free(first));
        for (int waits = 0; !has_control_thread() && waits < 300; waits++)
            scene_sleep_ms(10);
        EXPECT(has_control_thread());
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
