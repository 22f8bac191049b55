/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/magazine_pool.c: several threads, each with a magazine of its own, and one thread with one
 * in each of its pools. */
#include "tests/unit/magazine.h"

/* Another thread's step, seen through. */
struct step {
    struct rig *r;
    uint64_t addr, size_bytes;
    void (*f)(struct step *);
};

static void *take_step(void *arg)
{
    struct step *s = arg;
    s->f(s);
    return NULL;
}

static void elsewhere(struct step *s)
{
    pthread_join(started(take_step, s), NULL);
}

static void free_and_end(struct step *s)
{
    EXPECT_EQ(pool_free(s->addr), POOL_OK, "freed by another thread");
    int code;
    EXPECT_EQ(pool_alloc(s->r->pool, s->size_bytes, &s->addr, &code), POOL_OK, "allocated there");
    EXPECT_EQ(pool_free(s->addr), POOL_OK, "freed there");
}

RIG_TEST(a_thread_that_ends_leaves_nothing_behind, start(state))
{
    int code;
    for (int i = 0; i < 50; i++) {
        struct step s = {.r = r, .size_bytes = KIB(100), .f = free_and_end};
        EXPECT_EQ(pool_alloc(r->pool, s.size_bytes, &s.addr, &code), POOL_OK, "allocated here");
        elsewhere(&s);
    }
    unsigned count = 0;
    for (struct list *n = r->pool->magazines.next; n != &r->pool->magazines; n = n->next)
        count++;
    EXPECT_EQ(count, 1, "only this thread's magazine is left");
    EXPECT_EQ(rig_stats(r).allocated_bytes, 0, "everything was freed");
}

static void free_it(struct step *s)
{
    EXPECT_EQ(pool_free(s->addr), POOL_OK, "freed by another thread");
}

RIG_TEST(what_another_thread_freed_is_not_freed_again, start(state))
{
    uint64_t sizes[] = {700, KIB(300), MIB(3)};
    for (int i = 0; i < 3; i++)
        for (int turn = 0; turn < 20; turn++) {
            int code;
            struct step s = {.r = r, .f = free_it};
            rig_free(r, rig_alloc(r, sizes[i]));
            EXPECT_EQ(pool_alloc(r->pool, sizes[i], &s.addr, &code), POOL_OK,
                      "out of the magazine");
            elsewhere(&s);
            EXPECT_EQ(pool_free(s.addr), POOL_INVALID, "it is freed");
            uint64_t cut = rig_alloc(r, sizes[i] / 2);
            if (cut != s.addr)
                EXPECT_EQ(pool_free(s.addr), POOL_INVALID, "and nothing else by now");
            rig_free(r, cut);
            EXPECT_SOUND(r);
        }
}

POOL_TEST(a_thread_has_one_for_each_of_its_pools)
{
    struct rig *r = start(state), *other = rig_create(RIG_BYTES);
    other->model->backend.single_stream = true;
    rig_start(other);
    rig_free(other, rig_alloc(other, 512));
    for (int i = 0; i < 20; i++) {
        struct rig *each = i % 3 ? r : other;
        uint64_t a = rig_alloc(each, KIB(40));
        rig_free(each, a);
        EXPECT(cached(each) >= KIB(40), "it is in the pool's magazine");
        EXPECT_EQ(rig_alloc(each, KIB(40)), a, "and comes back");
        rig_free(each, a);
    }
    const char *words = rig_destroy(other);
    EXPECT(!words, "nothing is left");
}

RIG_TEST(a_forked_child_has_none, start(state))
{
    uint64_t a = rig_alloc(r, 512), b = rig_alloc(r, 512);
    rig_free(r, a);
    struct magazine *before = magazine(r);
    pool_forget_thread();
    EXPECT(!pool_alloc_fast(r->pool, 512) && !pool_free_fast(b), "no quick way serves");
    rig_free(r, b);
    EXPECT(magazine(r) != before, "a thread that goes on all the same begins anew");
}

enum { THREADS = 4, TURNS = 3000 };
static atomic_bool over;

struct worker {
    struct rig *r;
    unsigned number;
    uint64_t *exchange; /* THREADS pointers that change hands */
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t held[8] = {0};
    for (unsigned i = 0; i < TURNS; i++) {
        unsigned at = (i * 7 + w->number) % 8;
        int code;
        if (held[at]) {
            struct pool_block block;
            if (pool_lookup(held[at], &block) != POOL_OK || block.addr != held[at])
                fail_msg("a live block is not found");
            /* Every other one is freed by another thread. */
            if (i % 2)
                held[at] = atomic_exchange(
                    (_Atomic uint64_t *)&w->exchange[(w->number + 1) % THREADS], held[at]);
            if (held[at] && pool_free(held[at]) != POOL_OK)
                fail_msg("a live block cannot be freed");
        }
        uint64_t size = at < 4 ? 512u * (at + 1) : KIB(64) * at;
        if (pool_alloc(w->r->pool, size, &held[at], &code) != POOL_OK)
            fail_msg("there is memory");
        uint64_t large = 0; /* of which each thread keeps one */
        if (i % 4 == 0 && (pool_alloc(w->r->pool, MIB(8), &large, &code) != POOL_OK ||
                           pool_free(large) != POOL_OK))
            fail_msg("a large block is had and freed");
    }
    for (int i = 0; i < 8; i++)
        if (held[i])
            pool_free(held[i]);
    return NULL;
}

static void *trim(void *arg)
{
    struct rig *r = arg;
    while (!atomic_load(&over)) {
        pool_trim(r->pool, &(struct pool_trim){.keep_bytes = MIB(1)});
        struct pool_stats s;
        pool_stats(r->pool, &s);
        if (s.allocated_bytes > s.reserved_bytes)
            fail_msg("more is live than there is");
    }
    return NULL;
}

RIG_TEST(threads_share_a_pool_while_it_is_trimmed, start(state))
{
    uint64_t exchange[THREADS] = {0};
    struct worker workers[THREADS];
    pthread_t threads[THREADS], trimmer;
    atomic_store(&over, false);
    pthread_create(&trimmer, NULL, trim, r);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){r, i, exchange};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(trimmer, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        if (exchange[i])
            EXPECT_EQ(pool_free(exchange[i]), POOL_OK, "what changed hands last");
    EXPECT_EQ(rig_stats(r).allocated_bytes, 0, "everything was freed");
    EXPECT_EQ(rig_stats(r).live_blocks, 0, "and counted");
}

PLAY_TESTS
