/* SPDX-License-Identifier: BSD-2-Clause */
/* Eight threads allocate, fill, check and free at once, each on a stream of its own. A few blocks
 * live all the time, and are freed in another order than they came. */
#include "tests/preload/scene.h"

enum { THREADS = 8, ROUNDS = 60, LIVE = 8 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static int body(int index, void *context)
{
    struct {
        uint64_t ptr, words;
        uint32_t value;
    } live[LIVE] = {{0, 0, 0}};
    uint32_t random = 12345 + (uint32_t)index;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(index % 2 == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)(next_random(&random) % LIVE);
        if (live[i].ptr != 0) {
            wrong += scene_wrong_words(live[i].ptr, live[i].words, live[i].value, stream);
            REQUIRE(gpu_fill(live[i].ptr, live[i].words, 0xbad, stream));
            REQUIRE(gpu_free(live[i].ptr));
        }
        live[i].words = 1 + next_random(&random) % (round % 8 == 0 ? 1 << 16 : 1 << 12);
        live[i].value = next_random(&random);
        REQUIRE(gpu_malloc(&live[i].ptr, live[i].words * 4));
        REQUIRE(gpu_fill(live[i].ptr, live[i].words, live[i].value, stream));
    }
    for (int i = 0; i < LIVE; i++) {
        if (live[i].ptr == 0)
            continue;
        wrong += scene_wrong_words(live[i].ptr, live[i].words, live[i].value, stream);
        REQUIRE(gpu_free(live[i].ptr));
    }
    REQUIRE(gpu_stream_destroy(stream));
    return (int)wrong;
}

int main(void)
{
    scene_start(1, 120);
    int wrong = scene_threads(THREADS, body, NULL);
    printf("%d threads, %d rounds each, %d wrong words\n", THREADS, ROUNDS, wrong);
    REQUIRE(gpu_sync());
    return wrong != 0;
}
