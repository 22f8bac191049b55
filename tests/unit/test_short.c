/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory is short: the N-th mmap fails, or all from the N-th on, for N = 1, 2, 3... until a
 * scenario goes through untouched. Every call comes back with few driver calls, the pool stays
 * sound, and serves again once there is host memory. In both backings, with one stream and with
 * several. And no host memory at all, with a few records left for the blocks that a request splits
 * off. Linked with --wrap. */
#include "pool/state.h"
#include "pool/tuning.h"
#include "tests/unit/expect.h"

#include <sys/mman.h>

#define MOST 200
/* No entry point makes more driver calls than that in these scenarios. */
#define CALLS_MOST 400

/* Call number `from` fails, counted from 1, and those up to `to`. 0: none. Or each one for records:
 * a map takes pages of another size. */
static struct {
    unsigned calls, from, to;
    bool records;
} shortage;

static bool is_refused(size_t size_bytes)
{
    shortage.calls++;
    if (shortage.records)
        return size_bytes == HOST_BATCH_BYTES;
    return shortage.from && shortage.calls >= shortage.from && shortage.calls <= shortage.to;
}

/* Under the name that it has with large files, and without. */
#define WRAP(name)                                                                                 \
    void *__real_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset)  \
    {                                                                                              \
        if (!is_refused(size_bytes))                                                               \
            return __real_##name(addr, size_bytes, prot, flags, fd, offset);                       \
        errno = ENOMEM;                                                                            \
        return MAP_FAILED;                                                                         \
    }
WRAP(mmap)
WRAP(mmap64)

static uint64_t calls_in_step;

static void count_calls(struct model *m, enum model_row row)
{
    if (++calls_in_step > CALLS_MOST) {
        unsigned from = shortage.from;
        shortage.from = 0;
        fail_msg("a call does not come back: mmap %u to %u of %u", from, shortage.to,
                 shortage.calls);
    }
}

static uint64_t alloc(struct rig *r, uint64_t size_bytes)
{
    calls_in_step = 0;
    errno = 77;
    uint64_t addr = rig_alloc(r, size_bytes);
    EXPECT_EQ(errno, 77, "errno is left alone");
    EXPECT(addr || r->status == POOL_PASS || r->status == POOL_NOMEM, "or the driver is asked");
    return addr;
}

static void sum_ranges(void *arg, uint64_t addr, uint64_t size_bytes)
{
    *(uint64_t *)arg += size_bytes;
}

static void look_around(struct rig *r)
{
    uint64_t bytes = 0;
    struct pool_block block;
    for (uint32_t i = 0; i < r->count; i++)
        EXPECT_EQ(pool_lookup(r->blocks[i].addr, &block), POOL_OK, "what is live is found");
    pool_for_each_range(r->pool, sum_ranges, &bytes);
    if (pool_uses_arena(r->pool))
        EXPECT_EQ(bytes, rig_stats(r).reserved_bytes, "each range is seen");
    EXPECT(pool_idle_bytes(r->pool) <= rig_stats(r).reserved_bytes, "no more than there is");
}

/* All entry points, and enough records of each kind for more batches of them. */
static void run(struct rig *r)
{
    static const uint64_t sizes[] = {500,     KIB(2),   KIB(7), KIB(30),
                                     KIB(33), KIB(700), MIB(3), MIB(17)};
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 8 * 12; i++)
            alloc(r, sizes[i % 8]);
        for (unsigned i = 0; i < 300; i++)
            alloc(r, round == 1 ? KIB(40) : KIB(20));
        look_around(r);
        if (r->count > 2) {
            rig_expose(r, r->blocks[0].addr);
            pool_set_sync_memops(r->blocks[0].addr, true);
            EXPECT_EQ(pool_free(r->blocks[1].addr + 8), POOL_INVALID, "not the start of a block");
        }
        for (uint32_t i = 0; i < r->count; i += 3)
            rig_launch(r, r->several_streams ? i % 4 : 0, MS(1), r->blocks[i].addr);
        for (uint32_t i = 0; i < r->count; i++)
            rig_free(r, r->blocks[i].addr);
        calls_in_step = 0;
        pool_tick(r->pool, NULL);
        if (round == 1)
            rig_launch(r, 1, MS(1), 0);
        model_advance(r->model, MS(5));
        calls_in_step = 0;
        rig_trim(r, MIB(20), round == 2);
    }
    rig_enter_single(r);
}

/* false: the shortage did not come about. */
static bool run_once(unsigned way, unsigned from, unsigned to)
{
    struct rig *r = rig_in(way & 4 ? MIB(300) : MIB(2000), way & 1, way & 2);
    r->config.max_idle_bytes = MIB(200);
    r->model->late_allowed = true;
    r->model->hook = count_calls;
    shortage.calls = 0;
    shortage.from = from;
    shortage.to = to;
    calls_in_step = 0;
    rig_start(r);
    bool made = r->pool;
    if (!made)
        r->error = NULL; /* as pool_create says */
    if (made)
        run(r);
    bool came = shortage.calls >= from;
    shortage.from = 0;
    const char *words = rig_check(r);
    if (made)
        rig_free_all(r);
    model_drain(r->model);
    static const uint64_t sizes[] = {KIB(3), KIB(600), MIB(9)};
    for (unsigned i = 0; i < 3 && made && !words; i++)
        if (!alloc(r, sizes[i]))
            words = "with host memory requests are served again";
    const char *last = rig_destroy(r);
    words = words ? words : last;
    if (words)
        fail_msg("way %u, mmap %u to %u: %s", way, from, to, words);
    return came;
}

static void sweep(bool for_good)
{
    unsigned came = 0;
    for (unsigned way = 0; way < 8; way++) {
        unsigned nth = 1;
        while (nth < MOST && run_once(way, nth, for_good ? UINT32_MAX : nth)) {
            came++;
            nth++;
        }
        EXPECT(nth < MOST, "in the end a scenario goes through");
    }
    EXPECT(came > 50, "there were many moments");
}

TEST_IS(host_memory_that_is_short_once_harms_nothing, sweep(false))
TEST_IS(host_memory_that_stays_short_leaves_requests_to_the_driver, sweep(true))

/* A free block that starts at no page of a slab, and ends with its chunk. */
static void part_of_a_chunk(struct rig *r, uint64_t live_bytes)
{
    rig_start(r);
    rig_alloc(r, MIB(1));
    rig_alloc(r, live_bytes - MIB(1) + 512);
}

static void prepare_part(struct rig *r)
{
    part_of_a_chunk(r, KIB(1500));
}

/* Too little for the slab, which goes on in the hole behind it. */
static void prepare_end(struct rig *r)
{
    part_of_a_chunk(r, KIB(1900));
}

/* Two free blocks, in each of which only one chunk lies as a whole, in the middle. */
static void prepare_middle(struct rig *r)
{
    uint64_t a[8];
    rig_start(r);
    rig_alloc_all(r, a, 8, MIB(3));
    for (int i = 1; i <= 5; i += 4) {
        rig_free(r, a[i]);
        rig_free(r, a[i + 1]);
    }
    rig_settle(r);
}

static void prepare_segments(struct rig *r)
{
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
}

/* While the request is served, so many records for blocks are left, and no more can be had. The
 * records of slabs and chunks are there. */
static bool serve_with(struct rig *r, size_t left, uint64_t size_bytes)
{
    struct host_cache *c = &r->pool->block_cache;
    static void *taken[1024];
    unsigned count = 0;
    if (size_bytes <= SLAB_MAX_BYTES)
        EXPECT(host_cache_ensure(&r->pool->slab_caches[slab_class(size_bytes)], 1), "the slab's");
    EXPECT(host_cache_ensure(&r->pool->chunk_cache, MOST) && host_cache_ensure(c, left),
           "the others");
    while (c->count > left && count < 1024)
        taken[count++] = host_cache_get(c);
    EXPECT_EQ(c->count, left, "so many are left");
    shortage.records = true;
    bool served = rig_alloc(r, size_bytes);
    shortage.records = false;
    EXPECT(served || r->status == POOL_PASS, "the request is the driver's");
    while (count)
        host_cache_put(c, taken[--count]);
    EXPECT_SOUND(r);
    return served;
}

TEST(a_block_is_split_only_if_there_are_records_for_the_parts)
{
    static const struct {
        const char *where;
        void (*prepare)(struct rig *r);
        uint64_t size_bytes;
    } cases[] = {
        {"a slab in free memory", prepare_part, 300},
        {"a slab that ends in a hole", prepare_end, KIB(30)},
        {"idle chunks, and a hole for many", prepare_middle, MIB(64)},
        {"a segment", prepare_segments, MIB(64)},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t left = 0, refused = 0;
        for (bool last = false; !last && left < MOST; left++) {
            struct rig *r = rig_in(GIB(1), false, true);
            cases[i].prepare(r);
            last = serve_with(r, left, cases[i].size_bytes);
            refused += !last;
            EXPECT(last || rig_alloc(r, cases[i].size_bytes), "with host memory it is served");
            const char *words = rig_destroy(r);
            if (words)
                fail_msg("%s, %zu records left: %s", cases[i].where, left, words);
        }
        if (!refused || left == MOST)
            fail_msg("%s: %zu refused, %zu tried", cases[i].where, refused, left);
    }
}

PLAY_TESTS
