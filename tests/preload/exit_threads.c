/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process ends, in every way there is, while seven threads allocate, launch and free: it ends
 * at once and with its own code. Several times over, in processes forked before any CUDA call.
 */
#include "tests/preload/scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 7, EXIT_CODE = 21 };

static atomic_int running;

static void *churn(void *context)
{
    uint64_t words = 4 * KIB * (uint64_t)(1 + (intptr_t)context);
    uint64_t block = 0;
    REQUIRE(gpu_open(0));
    atomic_fetch_add(&running, 1);
    while (gpu_malloc(&block, words * 4) == 0 && gpu_fill(block, words, 1, NULL) == 0 &&
           gpu_free(block) == 0)
        continue;
    while (pause() != 0) /* the process is ending, and the driver has */
        continue;
    return NULL;
}

enum way { BY_EXIT, BY_QUICK_EXIT, BY_UNDERSCORE_EXIT, BY_THREAD, BY_MAIN_GONE, WAYS };

static const char *const way_names[WAYS] = {"exit", "quick_exit", "_exit", "exit in a thread",
                                            "exit with main gone"};

static void *leave_later(void *context)
{
    (void)context;
    scene_sleep_ms(20);
    exit(EXIT_CODE);
}

static void leave_busy(enum way way)
{
    scene_start(1, 100);
    for (intptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, churn, (void *)i));
        REQUIRE(pthread_detach(thread));
    }
    while (atomic_load(&running) < THREADS)
        scene_sleep_ms(1);
    scene_sleep_ms(20);
    pthread_t thread;
    switch (way) {
    case BY_QUICK_EXIT:
        quick_exit(EXIT_CODE);
    case BY_UNDERSCORE_EXIT:
        _exit(EXIT_CODE);
    case BY_THREAD:
        REQUIRE(pthread_create(&thread, NULL, leave_later, NULL));
        pause();
        break;
    case BY_MAIN_GONE:
        REQUIRE(pthread_create(&thread, NULL, leave_later, NULL));
        pthread_exit(NULL);
    default:
        exit(EXIT_CODE);
    }
}

int main(void)
{
    int wrong = 0;
    for (int i = 0; i < 2 * WAYS; i++) {
        int status = -1;
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            leave_busy((enum way)(i % WAYS));
        EXPECT(waitpid(child, &status, 0) == child);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        if (code == SCENE_SKIP)
            scene_skip("not enough devices");
        printf("%s: left with %d\n", way_names[i % WAYS], code);
        fflush(stdout);
        wrong += code != EXIT_CODE;
    }
    return wrong != 0;
}
