/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process ends by exit() from one thread while seven others allocate, launch and free: it ends
 * at once and with its own code. Several
 * times over, in processes forked before any CUDA call.
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
    REQUIRE(gpu_open(0));
    atomic_fetch_add(&running, 1);
    for (;;) {
        uint64_t block = 0;
        /* Once the process is ending the driver may refuse. */
        if (gpu_malloc(&block, words * 4) != 0)
            return NULL;
        if (gpu_fill(block, words, 1, NULL) != 0 || gpu_free(block) != 0)
            return NULL;
    }
}

static void leave_busy(void)
{
    scene_start(1, 30);
    for (intptr_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, churn, (void *)i));
        REQUIRE(pthread_detach(thread));
    }
    while (atomic_load(&running) < THREADS)
        scene_sleep_ms(1);
    scene_sleep_ms(50);
    exit(EXIT_CODE);
}

int main(void)
{
    int wrong = 0;
    for (int i = 0; i < 5; i++) {
        int status = -1;
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            leave_busy();
        EXPECT(waitpid(child, &status, 0) == child);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        if (code == SCENE_SKIP)
            scene_skip("not enough devices");
        printf("left with %d\n", code);
        fflush(stdout);
        wrong += code != EXIT_CODE;
    }
    return wrong != 0;
}
