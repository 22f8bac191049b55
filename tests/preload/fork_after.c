/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A child forked after the parent used CUDA: its own CUDA calls give the driver's error, it ends by
 * exit() and by _exit() without harm, it may start another program; and the parent goes on with its
 * blocks whole. Also while other threads of the parent are at work.
 */
#include "tests/preload/scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_bool stop;

static int wait_for(pid_t child)
{
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void child_calls(uint64_t block)
{
    uint64_t mine = 0;
    printf("child: malloc %d", gpu_malloc(&mine, 4096));
    printf(", free %d", gpu_free(block));
    printf(", synchronise %d\n", gpu_sync());
}

static void *churn(void *context)
{
    (void)context;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&stop)) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, 256 * KIB));
        REQUIRE(gpu_free(block));
    }
    return NULL;
}

int main(void)
{
    const uint64_t words = 32 * KIB;
    uint64_t block = 0;
    uint32_t wrong = 0;
    pthread_t threads[3];
    scene_start(1, 60);
    /* The thread has had the block before, and so could have it quickly. */
    for (int i = 0; i < 3; i++) {
        if (block)
            REQUIRE(gpu_free(block));
        REQUIRE(gpu_malloc(&block, words * 4));
    }
    REQUIRE(gpu_fill(block, words, 9, NULL));
    REQUIRE(gpu_sync());
    fflush(stdout);

    pid_t child = fork();
    if (child == 0) {
        child_calls(block);
        exit(0);
    }
    printf("exit: %d\n", wait_for(child));
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(3);
    printf("_exit: %d\n", wait_for(child));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        scene_leave_sanitizer();
        execlp("sh", "sh", "-c", "echo started; exit 5", (char *)NULL);
        _exit(127);
    }
    printf("exec: %d\n", wait_for(child));
    wrong += scene_wrong_words(block, words, 9, NULL);

    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_create(&threads[i], NULL, churn, NULL));
    int failed = 0;
    fflush(stdout);
    for (int i = 0; i < 8; i++) {
        child = fork();
        if (child == 0)
            exit(0);
        failed += wait_for(child) != 0;
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("forked beside busy threads: %d failed\n", failed);
    wrong += scene_wrong_words(block, words, 9, NULL);
    REQUIRE(gpu_free(block));
    printf("parent: %u wrong words\n", wrong);
    return wrong != 0 || failed != 0;
}
