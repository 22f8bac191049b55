/* SPDX-License-Identifier: BSD-2-Clause */
/* Work and its order. */
#include "tests/sim/work.h"

#include "tests/sim/alloc.h"
#include "tests/sim/clock.h"
#include "tests/sim/context.h"
#include "tests/sim/handles.h"

static struct handles works = {.size = sizeof(struct work)};
static uint64_t submitted;

struct work *work_create(struct CUctx_st *context, const struct command *command)
{
    struct work *work = handles_take(&works);
    struct work **successors = work->successors;
    unsigned capacity = work->successor_capacity;
    *work = (struct work){.command = *command,
                          .context = context,
                          .references = 1,
                          .blockers = 1,
                          .number = ++submitted,
                          .earliest_ns = clock_now_ns(),
                          .successors = successors,
                          .successor_capacity = capacity};
    return work;
}

struct work *work_retain(struct work *work)
{
    if (work != NULL)
        work->references++;
    return work;
}

void work_release(struct work *work)
{
    if (work != NULL && --work->references == 0)
        handles_give(&works, work);
}

void work_assign(struct work **slot, struct work *work)
{
    work_retain(work);
    work_release(*slot);
    *slot = work;
}

void work_after(struct work *work, struct work *before)
{
    if (before == NULL)
        return;
    if (before->state == WORK_DONE) {
        if (work->earliest_ns < before->end_ns)
            work->earliest_ns = before->end_ns;
        return;
    }
    if (before->successor_count == before->successor_capacity) {
        before->successor_capacity = before->successor_capacity * 2 + 2;
        before->successors = never_null(
            realloc(before->successors, before->successor_capacity * sizeof *before->successors));
    }
    before->successors[before->successor_count++] = work;
    work->blockers++;
}

static void unblock(struct work *work)
{
    if (--work->blockers == 0)
        clock_start(work);
}

void work_submit(struct work *work)
{
    work_retain(work);
    work->context->pending++;
    unblock(work);
}

void work_complete(struct work *work, uint64_t end_ns)
{
    work->end_ns = end_ns;
    CUresult rc = command_run(&work->command, work->context);
    if (rc != CUDA_SUCCESS)
        context_fail(work->context, rc);
    work->state = WORK_DONE;
    work->context->pending--;
    unsigned count = work->successor_count;
    work->successor_count = 0;
    for (unsigned i = 0; i < count; i++) {
        struct work *after = work->successors[i];
        if (after->earliest_ns < end_ns)
            after->earliest_ns = end_ns;
        unblock(after);
    }
    work_release(work);
}
