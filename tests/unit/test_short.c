/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Host memory is short: the N-th mmap fails, or all from the N-th on, for N = 1, 2, 3... until a
 * scenario goes through untouched. Every call comes back with few driver calls, the pool stays
 * sound, and serves again once there is host memory. In both backings, with one stream and with
 * several. Linked with --wrap.
 */
#include "tests/unit/expect.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#define MOST 200
/* No entry point makes more driver calls than that in these scenarios. */
#define CALLS_MOST 400

/* Call number `from` fails, counted from 1, and those up to `to`. 0: none. */
static struct {
    unsigned calls, from, to;
} shortage;

static bool is_refused(void)
{
    shortage.calls++;
    return shortage.from && shortage.calls >= shortage.from && shortage.calls <= shortage.to;
}

/* Under the name that it has with large files, and without. */
#define WRAP(name)                                                                                 \
    void *__real_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *addr, size_t size_bytes, int prot, int flags, int fd, off_t offset)  \
    {                                                                                              \
        if (!is_refused())                                                                         \
            return __real_##name(addr, size_bytes, prot, flags, fd, offset);                       \
        errno = ENOMEM;                                                                            \
        return MAP_FAILED;                                                                         \
    }
WRAP(mmap)
WRAP(mmap64)

static uint64_t calls_in_step;

static void count_calls(struct model *m, enum model_row row)
{
    (void)m;
    (void)row;
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
    (void)addr;
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
        pool_tick(r->pool);
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
    struct rig *r = rig_create(way & 4 ? MIB(300) : MIB(2000));
    r->config.backing = way & 1 ? BACKING_SEGMENT : BACKING_ARENA;
    r->config.max_idle_bytes = MIB(200);
    r->model->backend.single_stream = way & 2;
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

static void host_memory_that_is_short_once_harms_nothing(void **state)
{
    (void)state;
    sweep(false);
}

static void host_memory_that_stays_short_leaves_requests_to_the_driver(void **state)
{
    (void)state;
    sweep(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_that_is_short_once_harms_nothing),
        cmocka_unit_test(host_memory_that_stays_short_leaves_requests_to_the_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
