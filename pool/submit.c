/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the threads that submit work ask of a pool: see pool.h. The arguments stand in fence.h and
 * single_stream.h.
 */
#include "pool/pool.h"

#include "pool/single_stream.h"
#include "pool/state.h"

void pool_submit(struct pool *p, uint64_t stream)
{
    if (fence_may_submit(&p->fences, stream))
        return;
    state_enter(p);
    fence_submit(p);
    state_leave(p);
}

bool pool_leave_single_stream(struct pool *p)
{
    state_enter(p);
    bool waited = single_stream_leave(p);
    state_leave(p);
    return waited;
}

void pool_seal(struct pool *p)
{
    state_enter(p);
    if (!p->abandoned)
        fence_seal(p);
    state_leave(p);
}

uint64_t pool_mark(struct pool *p)
{
    return atomic_load(&p->fences.open_epoch);
}

bool pool_passed(struct pool *p, uint64_t mark)
{
    state_enter(p);
    struct fences *f = &p->fences;
    if (f->complete_epoch < mark || f->complete_epoch < f->late_epoch) /* see single_stream_enter */
        fence_poll(p);
    bool passed = f->complete_epoch >= mark;
    state_leave(p);
    return passed;
}

bool pool_enter_single_stream(struct pool *p, uint64_t mark, uint64_t stream,
                              const atomic_bool *breach)
{
    state_enter(p);
    bool entered = single_stream_enter(p, mark, stream, breach);
    state_leave(p);
    return entered;
}

bool pool_is_idle(struct pool *p)
{
    state_enter(p);
    bool idle = !p->backend->has_order || fence_is_idle(p);
    state_leave(p);
    return idle;
}

void pool_give_up_single_stream(struct pool *p)
{
    state_enter(p);
    single_stream_leave(p);
    single_stream_unwatch(p);
    state_leave(p);
}
