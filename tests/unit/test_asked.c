/* SPDX-License-Identifier: BSD-2-Clause */
/* One thread asks about addresses, while another takes and frees blocks there. It is told of a
 * block that was there, or that there is none. A program may ask about a pointer that another
 * thread has freed since, and that is being handed out again. To be run under TSan as well. */
#include "pool/bits.h"
#include "tests/unit/expect.h"

#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1 /* a divisor */
#endif
enum { ROUNDS = 40000 / FEWER_ROUNDS, TURNS = 200, ASKED = 2000, BLOCKS = 4 };

/* An object of a slab, a small block, a large one, and the one that a magazine holds at most. */
static const uint64_t sizes[] = {700, KIB(100), KIB(1500), MIB(6)};
enum { SIZES = sizeof sizes / sizeof *sizes };

static struct {
    _Atomic uint64_t addr[SIZES]; /* the latest that was handed out */
    atomic_bool done, exposes;
    atomic_ullong asked, found, wrong;
} shared;

/* Relaxed all of them: the threads have no order but the pool's. */
#define LOAD(what) atomic_load_explicit(&shared.what, memory_order_relaxed)
#define STORE(what, value) atomic_store_explicit(&shared.what, value, memory_order_relaxed)
#define COUNT(what) atomic_fetch_add_explicit(&shared.what, 1, memory_order_relaxed)

static void *ask(void *unused)
{
    struct pool_block b;
    for (unsigned i = 0; !LOAD(done); i++) {
        uint64_t size = sizes[i % SIZES], addr = LOAD(addr[i % SIZES]);
        enum pool_status status = addr ? pool_lookup(addr + size / 2, &b) : POOL_INVALID;
        COUNT(asked);
        if (status != POOL_OK)
            continue;
        COUNT(found);
        /* Blocks of any of the sizes may have been there. */
        bool known = false;
        for (int k = 0; k < SIZES; k++)
            known = known || (b.requested_bytes == sizes[k] &&
                              b.size_bytes >= round_up(sizes[k], UNIT_BYTES));
        if (!known || addr + size / 2 - b.addr >= b.size_bytes || !b.serial)
            COUNT(wrong);
        if (LOAD(exposes) && i % 64 == 0)
            pool_expose(addr);
    }
    return NULL;
}

/* The same size many times in turn: it comes out of the magazine, without a lock that the thread
 * that asks takes too. At first a few at a time, so that there are several. */
static void take(struct rig *r, unsigned round)
{
    unsigned at = round / TURNS % SIZES, count = round % TURNS ? 1 : BLOCKS;
    uint64_t addrs[BLOCKS], size_bytes = sizes[at];
    int code;
    for (unsigned i = 0; i < count; i++) {
        EXPECT_EQ(pool_alloc(r->pool, size_bytes, &addrs[i], &code), POOL_OK, "there is memory");
        STORE(addr[at], addrs[i]);
    }
    for (unsigned i = 0; i < count; i++)
        EXPECT_EQ(pool_free(addrs[i]), POOL_OK, "it was live");
    if (round % (TURNS * SIZES) == 0)
        pool_trim(r->pool, &(struct pool_trim){.keep_bytes = 0});
}

static void take_beside_questions(struct rig *r, bool exposes)
{
    for (int i = 0; i < SIZES; i++)
        STORE(addr[i], 0);
    STORE(done, false);
    STORE(exposes, exposes);
    STORE(asked, 0);
    STORE(found, 0);
    STORE(wrong, 0);
    pthread_t thread = started(ask, NULL);
    for (unsigned round = 0; round < ROUNDS || LOAD(asked) < ASKED || !LOAD(found); round++)
        take(r, round);
    STORE(done, true);
    pthread_join(thread, NULL);
    EXPECT_EQ(LOAD(wrong), 0, "each block was one that was asked for");
    EXPECT_EQ(rig_stats(r).live_blocks, 0, "what was taken is freed");
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
}

POOL_TEST_IS(a_question_beside_takes_is_told_of_a_block,
             take_beside_questions(expect_single(state), false))

POOL_TEST(the_same_in_segments)
{
    struct rig *r = *state;
    r->config.backing = BACKING_SEGMENT;
    take_beside_questions(expect_single(state), false);
}

POOL_TEST_IS(what_is_made_known_while_it_is_taken_harms_nothing,
             take_beside_questions(expect_single(state), true))

PLAY_TESTS
