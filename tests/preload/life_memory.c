/* SPDX-License-Identifier: BSD-2-Clause */
/* See life.h: memory, streams and threads. */
#include "tests/preload/life.h"

static pthread_t busy[BUSY_MAX];
static atomic_bool stop_busy;

static CUstream some_stream(void)
{
    return life.streams[life_draw(STREAMS)];
}

static void renew(struct block *b)
{
    b->value = life_draw(UINT32_MAX);
    b->stream = some_stream();
    REQUIRE(gpu_fill(b->at, b->words, b->value, b->stream));
}

uint32_t life_wrong_in(const struct block *b)
{
    return scene_wrong_words(b->at, b->words, b->value, b->stream);
}

void life_give_or_take(void)
{
    struct block *b = &life.blocks[life_draw(BLOCKS)];
    if (b->at == 0) {
        b->words = life_draw_words();
        REQUIRE(gpu_malloc(&b->at, b->words * 4));
        renew(b);
        return;
    }
    if (life_draw(3) == 0)
        printf("  wrong words: %u\n", life_wrong_in(b));
    if (life_draw(4) == 0) /* work is under way when it is freed */
        REQUIRE(gpu_spin_fill(b->at, b->words, 1, 200000, b->stream));
    if (life_draw(6) == 0)
        REQUIRE(gpu_free_async(b->at, b->stream));
    else
        REQUIRE(gpu_free(b->at));
    b->at = 0;
}

void life_check_all(void)
{
    uint32_t wrong = 0;
    for (int i = 0; i < BLOCKS; i++)
        wrong += life.blocks[i].at != 0 ? life_wrong_in(&life.blocks[i]) : 0;
    printf("  all of them, wrong words: %u\n", wrong);
}

void life_change_streams(void)
{
    CUstream *s = &life.streams[life_draw(STREAMS)];
    if (*s == NULL) {
        REQUIRE(gpu_stream_create(s, life_draw(2) != 0));
        return;
    }
    /* What it was given goes on without it, and is waited for: nothing else would order what
     * follows. */
    REQUIRE(gpu_stream_sync(*s));
    for (int i = 0; i < BLOCKS; i++)
        if (life.blocks[i].stream == *s)
            life.blocks[i].stream = NULL;
    REQUIRE(gpu_stream_destroy(*s));
    *s = NULL;
}

int life_work_a_while(int index, void *context)
{
    const uint32_t *rounds = context;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    for (uint32_t i = 0; i < *rounds && !atomic_load(&stop_busy); i++) {
        uint64_t words = (i * 37 + (uint32_t)index * 1000) % 30000 + 1, block = 0;
        block = NEW_FILLED(words, i, stream);
        if (i % 4 == 0)
            wrong += scene_wrong_words(block, words, i, stream);
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_stream_destroy(stream));
    return (int)wrong;
}

static void *stay_busy(void *index)
{
    uint32_t rounds = UINT32_MAX;
    return (void *)(intptr_t)life_work_a_while((int)(intptr_t)index, &rounds);
}

void life_add_busy(void)
{
    if (life.num_busy == BUSY_MAX)
        return;
    REQUIRE(pthread_create(&busy[life.num_busy], NULL, stay_busy, (void *)(intptr_t)life.num_busy));
    life.num_busy++;
}

void life_end_busy(void)
{
    intptr_t wrong = 0;
    atomic_store(&stop_busy, true);
    for (; life.num_busy > 0; life.num_busy--) {
        void *said = NULL;
        REQUIRE(pthread_join(busy[life.num_busy - 1], &said));
        wrong += (intptr_t)said;
    }
    atomic_store(&stop_busy, false);
    printf("  busy threads, wrong words: %d\n", (int)wrong);
}
