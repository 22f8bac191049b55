/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Children forked before any CUDA call: each opens the GPU for itself and works, and so does the
 * parent; their memory is theirs.
 */
#include "tests/preload/scene.h"

#include <sys/wait.h>
#include <unistd.h>

static uint32_t work(uint32_t value)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 20; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, words, value + i, NULL));
        wrong += scene_wrong_words(block, words, value + i, NULL);
        REQUIRE(gpu_free(block));
    }
    return wrong;
}

int main(void)
{
    enum { CHILDREN = 3 };
    pid_t children[CHILDREN];
    int failed = 0;
    scene_watchdog(60);
    for (uint32_t i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        EXPECT(children[i] >= 0);
        if (children[i] == 0) {
            scene_start(1, 60);
            exit(work(100 * i) == 0 ? 0 : 1);
        }
    }
    scene_start(1, 60);
    uint32_t wrong = work(1000);
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        EXPECT(waitpid(children[i], &status, 0) == children[i]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    printf("parent %u wrong words, %d children failed\n", wrong, failed);
    return wrong != 0 || failed != 0;
}
