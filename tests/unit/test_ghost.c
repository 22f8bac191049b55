/* SPDX-License-Identifier: BSD-2-Clause */
/* Ghosts (pool/chunk.c): memory that moves while old work uses it, and the old mappings that stay
 * for that work. The file is included, so that the tests choose how many ghosts are looked at
 * together. */
#include "pool/tuning.h"

static int at_once = GHOSTS_AT_ONCE;
#undef GHOSTS_AT_ONCE
#define GHOSTS_AT_ONCE at_once
#include "pool/chunk.c"
#include "tests/unit/ends.h"

static struct rig *ordering(void **state)
{
    return expect_reuse(state, REUSE_ORDER);
}

/* n blocks of 4 MiB; of the first num_freed, every step-th is freed while work uses it. */
static void free_behind_work(struct rig *r, uint64_t a[], int n, int num_freed, int step)
{
    rig_alloc_all(r, a, n, MIB(4));
    for (int i = 0; i < num_freed; i += step)
        rig_free_behind(r, 1, MS(10), a[i]);
}

RIG_TEST(ordered_memory_moves_and_leaves_a_ghost, ordering(state))
{
    uint64_t a[8];
    free_behind_work(r, a, 8, 8, 2);
    uint64_t b = rig_alloc(r, MIB(4));
    EXPECT(b == a[0] || b == a[2] || b == a[4] || b == a[6], "reused behind its old work");
    EXPECT_EQ(rig_stats(r).num_fence_orders, 1, "by one order");
    uint64_t reserved = rig_stats(r).reserved_bytes;
    uint64_t c = rig_alloc(r, MIB(12));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 3, "idle chunks serve although their work goes on");
    EXPECT_EQ(rig_stats(r).reserved_bytes, reserved, "no new memory");
    EXPECT_EQ(r->pool->ghost_bytes, MIB(12), "and stays mapped for that work");
    rig_launch(r, 2, MS(1), c);
    EXPECT_SOUND(r);
    model_advance(r->model, MS(100));
    rig_free(r, b);
    pool_trim(r->pool, &(struct pool_trim){.wait_ns = MS(100)});
    EXPECT_EQ(r->pool->ghost_bytes, 0, "which the ghosts do not outlive");
}

RIG_TEST(ghosts_next_to_each_other_end_together, ordering(state))
{
    uint64_t a[6];
    free_behind_work(r, a, 6, 4, 1);
    EXPECT(rig_alloc(r, MIB(20)), "at the end, for want of room");
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 4, "with the memory of all four");
    EXPECT_EQ(r->pool->ghost_bytes, MIB(16), "which their work goes on to use where it was");
    uint64_t before = r->model->unmaps;
    model_advance(r->model, MS(100));
    rig_trim(r, GIB(1), true);
    EXPECT_EQ(r->pool->ghost_bytes, 0, "until it is complete");
    EXPECT_EQ(r->model->unmaps - before, 1, "then one call ends them all");
}

RIG_TEST(memory_that_moved_is_not_released_before_its_old_work_is_complete, ordering(state))
{
    uint64_t a[8];
    free_behind_work(r, a, 8, 8, 2);
    uint64_t b = rig_alloc(r, MIB(16));
    EXPECT(rig_stats(r).num_chunk_moves >= 3, "chunks moved below running work");
    rig_free(r, b);
    /* A fence of work that is complete by itself says nothing about the old one. */
    EXPECT_EQ(rig_trim(r, 0, false), 0, "nothing is known complete");
    EXPECT_SOUND(r);
    model_advance(r->model, MS(100));
    EXPECT_EQ(rig_trim(r, 0, false), MIB(16), "now it is");
}

POOL_TEST(addresses_of_moved_memory_do_not_run_out)
{
    ((struct rig *)*state)->model->backend.total_bytes = MIB(64);
    struct rig *r = ordering(state);
    for (int round = 0; round < 60; round++) {
        uint64_t a[16];
        rig_alloc_all(r, a, 15, MIB(4));
        for (int i = 0; i < 15; i += 2)
            if (a[i])
                rig_free_behind(r, 1, MS(1000000), a[i]);
        rig_alloc(r, MIB(24));
        EXPECT(r->pool->ghost_bytes <= 5 * MIB(64), "old mappings are kept within bounds");
        rig_free_all(r);
    }
    EXPECT(rig_stats(r).num_chunk_moves > 50, "many chunks moved below running work");
}

static void stop_at_unmap(struct model *m)
{
    m->hook_unmap = NULL;
    stopped_wait(m->hook_arg);
}

static void *reap(void *arg)
{
    struct stopped *s = arg;
    pool_trim(s->rig->pool, &(struct pool_trim){.keep_bytes = GIB(1)});
    return NULL;
}

/* A ghost is in no list while it is unmapped. */
RIG_TEST(a_thread_that_unmaps_a_ghost_is_waited_for, ordering(state))
{
    struct stopped s = {.rig = r};
    uint64_t a[8];
    free_behind_work(r, a, 8, 8, 2);
    rig_alloc(r, MIB(12));
    EXPECT_EQ(r->pool->ghost_bytes, MIB(12), "memory moved below running work");
    model_drain(r->model);
    r->model->hook_unmap = stop_at_unmap;
    stopped_begin(&s, reap);
    EXPECT_EQ(r->pool->ghost_bytes, 0, "it has the ghosts");
    EXPECT(stopped_end(&s), "nothing is taken away as long as it is at work");
    r->count = 0;
}

/* Where the stack is when ghosts are unmapped. */
static const struct backend_ops *ops_before;
static uintptr_t stack_least, stack_most;

static int note_stack(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    stack_least = !stack_least || here < stack_least ? here : stack_least;
    stack_most = here > stack_most ? here : stack_most;
    return ops_before->unmap(b, addr, size_bytes);
}

/* Threads of programs have stacks of 16 KiB. */
RIG_TEST(many_ghosts_need_no_more_stack_than_one, ordering(state))
{
    uint64_t a[120];
    free_behind_work(r, a, 120, 120, 2);
    rig_alloc_all(r, NULL, 12, MIB(16));
    EXPECT(r->pool->ghost_bytes >= MIB(100), "many ghosts");
    model_advance(r->model, MS(100));
    struct backend_ops ops = *(ops_before = r->model->backend.ops);
    ops.unmap = note_stack;
    r->model->backend.ops = &ops;
    at_once = 1;
    rig_trim(r, GIB(1), true);
    r->model->backend.ops = ops_before;
    at_once = 1024;
    EXPECT_EQ(r->pool->ghost_bytes, 0, "none is left");
    EXPECT_EQ(stack_most - stack_least, 0, "each was unmapped at the same depth");
}

PLAY_TESTS
