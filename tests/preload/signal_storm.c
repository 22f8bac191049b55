/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Flushes asked for all the time while four threads allocate, launch and free:
 * nothing is damaged and nothing hangs.
 * Bare, no handler would take the signal, and none is sent.
 */
#include "tests/preload/scene.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 5, ROUNDS = 100 };

static atomic_int working = THREADS - 1;

static int work(uint32_t seed)
{
    CUstream stream = NULL;
    uint32_t wrong = 0;
    REQUIRE(gpu_stream_create(&stream, seed % 2 == 0));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t words = (i % 13 + 1) * (i % 5 == 0 ? 10000 : 700);
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, words, seed + i, stream));
        wrong += scene_wrong_words(block, words, seed + i, stream);
        REQUIRE(gpu_fill(block, words, 0, stream));
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_stream_destroy(stream));
    atomic_fetch_sub(&working, 1);
    return (int)wrong;
}

static int body(int index, void *context)
{
    (void)context;
    if (index != 0) {
        REQUIRE(gpu_open(0));
        return work((uint32_t)index * 1000);
    }
    while (atomic_load(&working) > 0) {
        if (scene_preloaded())
            REQUIRE(kill(getpid(), SIGUSR1));
        usleep(500);
    }
    return 0;
}

int main(void)
{
    uint64_t first = 0;
    scene_start(1, 120);
    REQUIRE(gpu_malloc(&first, 4096));
    int wrong = scene_threads(THREADS, body, NULL);
    printf("%d wrong words\n", wrong);
    REQUIRE(gpu_free(first));
    return wrong != 0;
}
