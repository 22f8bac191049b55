/* SPDX-License-Identifier: BSD-2-Clause */
/* Idle memory goes back to the driver on request, as another process sees. */
#include "tests/preload/observer.h"
#include "tests/preload/scene.h"

#include <dirent.h>

/* SIGUSR1 comes half way. Idle memory goes back to the driver, as another process can see. Live
 * blocks keep their addresses and contents, and the program goes on. Bare, memory went back at its
 * free and there is no one to signal. */

enum { LIVE = 24, IDLE = 8 };

static bool has_control_thread(void)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        found |= strcmp(scene_text(path), "gpucache\n") == 0;
    }
    if (tasks)
        closedir(tasks);
    return found;
}

ACT(a_signal_gives_idle_memory_back)
{
    uint64_t live[LIVE], idle[IDLE];
    uint32_t wrong = 0;
    bool back = true;
    struct observer observer;
    observer_start(&observer);
    if (scene_preloaded()) {
        /* A page, a file for the report, and packages with caches (which a forked child may have)
         * need the control thread at once. */
        REQUIRE(setenv("GPUCACHE_DIR", "none", 1));
        REQUIRE(setenv("GPUCACHE_STATS", "off", 1));
        REQUIRE(setenv("GPUCACHE_FRAMEWORKS", "0", 1));
    }
    scene_start(1, 120);
    if (scene_preloaded()) {
        /* The first allocation brings the handler. */
        struct sigaction action;
        uint64_t first = NEW_BLOCK(4096);
        /* Nothing was freed, so there is nothing to give back and no thread that would. */
        EXPECT(!has_control_thread());
        REQUIRE(raise(SIGUSR1));
        REQUIRE(gpu_free(first));
        for (int waits = 0; !has_control_thread() && waits < 2000; waits++)
            scene_sleep_ms(10);
        EXPECT(has_control_thread());
        REQUIRE(sigaction(SIGUSR1, NULL, &action));
        EXPECT(action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    }
    for (int round = 0; round < 3 && back; round++) {
        for (uint32_t i = 0; i < LIVE; i++) {
            live[i] = NEW_BLOCK((i + 1) * 64 * KIB);
            REQUIRE(gpu_fill(live[i], (i + 1) * 2 * KIB, i + 7, NULL));
        }
        for (int i = 0; i < IDLE; i++) {
            idle[i] = NEW_BLOCK(64 * MIB);
            REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
        }
        REQUIRE(gpu_sync());
        size_t full = observer_free_bytes(&observer);
        FREE_ALL(idle, IDLE);
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        size_t want = full + (IDLE * 64 - 32) * MIB;
        int waits = 0;
        while (observer_free_bytes(&observer) < want && waits++ < 1200)
            scene_sleep_ms(10);
        back = observer_free_bytes(&observer) >= want;
        printf("round %d: others see it %s", round, back ? "free" : "taken");
        for (uint32_t i = 0; i < LIVE; i++)
            wrong += scene_wrong_words(live[i], (i + 1) * 2 * KIB, i + 7, NULL);
        printf(", %u wrong words\n", wrong);
        FREE_ALL(live, LIVE);
    }
    observer_stop(&observer);
    return wrong != 0;
}

/* The running program sets GPUCACHE_EMPTY_CACHE in its own environment. Idle memory is back with
 * the driver after the next allocation. Bare, the variable means nothing and nothing was kept. */

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

ACT(setenv_gives_idle_memory_back)
{
    enum { IDLE_BLOCKS = 6 };
    uint64_t idle[IDLE_BLOCKS];
    uint32_t wrong = 0;
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    uint64_t live = NEW_BLOCK(256 * KIB);
    REQUIRE(gpu_fill(live, 16 * KIB, 8, NULL));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < IDLE_BLOCKS; i++) {
            idle[i] = NEW_BLOCK(64 * MIB);
            REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
        }
        REQUIRE(gpu_sync());
        size_t full = observer_free_bytes(&observer);
        FREE_ALL(idle, IDLE_BLOCKS);
        request(round);
        uint64_t next = NEW_BLOCK(4096);
        size_t seen = observer_free_bytes(&observer);
        printf("round %d: others see it %s\n", round,
               seen >= full + (IDLE_BLOCKS * 64 - 32) * MIB ? "free" : "taken");
        REQUIRE(gpu_free(next));
        REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
        wrong += scene_wrong_words(live, 16 * KIB, 8, NULL);
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_free(live));
    observer_stop(&observer);
    return wrong != 0;
}

/* A kernel runs until the host raises a flag. Meanwhile idle memory goes back, on request and when
 * other sizes are needed. Nothing waits for the kernel, which uses none of that memory. */

enum { IDLE_BESIDE = 6 };

static uint32_t *held;
static CUstream forever;

static void use_and_free(uint64_t bytes)
{
    uint64_t idle[IDLE_BESIDE];
    for (int i = 0; i < IDLE_BESIDE; i++) {
        idle[i] = NEW_BLOCK(bytes);
        REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
    }
    REQUIRE(gpu_sync());
    FREE_ALL(idle, IDLE_BESIDE);
}

static void end_kernel(void)
{
    printf("running: %s\n",
           gpu_stream_query(forever) == CUDA_ERROR_NOT_READY ? "still" : "no more");
    scene_let_go(held);
    REQUIRE(gpu_stream_sync(forever));
    gpu_last_error();
}

ACT(nothing_waits_for_a_running_kernel)
{
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    forever = NEW_STREAM(false);
    uint64_t small = NEW_BLOCK(4096);
    size_t before = observer_free_bytes(&observer);

    use_and_free(64 * MIB);
    held = scene_hold(forever);
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "1", 1));
    uint64_t other = NEW_BLOCK(8192);
    printf("on request: others see it %s\n",
           observer_free_bytes(&observer) + 32 * MIB >= before ? "free" : "taken");
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
    end_kernel();
    REQUIRE(gpu_free(other));

    use_and_free(64 * MIB);
    held = scene_hold(forever);
    other = NEW_BLOCK(300 * MIB);
    printf("for another size: others see it %s\n",
           observer_free_bytes(&observer) + (300 + 160) * MIB >= before ? "free" : "taken");
    end_kernel();
    REQUIRE(gpu_free(other));
    REQUIRE(gpu_free(small));
    observer_stop(&observer);
    return 0;
}
