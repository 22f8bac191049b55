/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Records with the call path: see trace.h and fast.h. A path that the thread has recorded before
 * costs the walk, 2 ns a frame, and a look in the thread's table. No lock.
 */
#include "shim/trace/fast.h"
#include "shim/trace/python_frames.h"
#include "shim/trace/stack.h"
#include "shim/trace/trace.h"

_Atomic uint32_t trace_depth;
static _Atomic uint32_t depth_rare;

void trace_set_depth(unsigned frames, bool paths)
{
    unsigned most = frames < STACK_FRAMES_MOST ? frames : STACK_FRAMES_MOST;
    atomic_store(&trace_depth, paths ? most : 0);
    atomic_store(&depth_rare, !paths ? 0 : most > TRACE_DEPTH_RARE ? most : TRACE_DEPTH_RARE);
}

/* False: there is no more than the caller. */
static bool take_stack(struct trace_stack *s, const void *caller, unsigned most)
{
    uint64_t key = 1, *python = &s->at[STACK_FRAMES_MOST];
    struct stack_code until = {0, 0};
    s->num_python = python_frames_walk(most, python, &key);
    if (s->num_python)
        until = python_frames_code();
    s->count = stack_walk(caller, most, until, s->at);
    if (!s->count)
        return false;
    for (unsigned i = 0; i < s->count; i++)
        key = ((key ^ s->at[i]) * UINT64_C(0x9e3779b97f4a7c15)) ^ key >> 29;
    for (unsigned i = 0; i < s->num_python; i++)
        s->at[s->count + i] = python[i];
    s->key = key | UINT64_C(1) << 63;
    return s->count + s->num_python > 1;
}

__attribute__((noinline)) void trace_note_path(enum trace_kind kind, uint64_t addr,
                                               uint64_t size_bytes, const void *caller)
{
    struct trace_thread *t = trace_mine;
    struct trace_stack stack;
    unsigned most = atomic_load_explicit(&trace_depth, memory_order_relaxed);
    if (!take_stack(&stack, caller, most)) {
        trace_note_fast(kind, addr, size_bytes, caller);
        return;
    }
    if (t->paths &&
        trace_put_fast(t, kind, addr, size_bytes, trace_path_of(t, stack.key), stack.key))
        return;
    trace_note(kind, &(const struct trace_event){addr, size_bytes, caller, .stack = &stack});
}

static bool is_rare(enum trace_kind kind)
{
    return kind == TRACE_PASSED || kind == TRACE_ALLOC_FAILED || kind == TRACE_FREE_FAILED ||
           kind == TRACE_OOM;
}

__attribute__((noinline)) void trace_note_call(enum trace_kind kind, const struct trace_event *e)
{
    struct trace_event event = *e;
    struct trace_stack stack;
    unsigned most =
        atomic_load_explicit(is_rare(kind) ? &depth_rare : &trace_depth, memory_order_relaxed);
    if (most && e->caller && take_stack(&stack, e->caller, most))
        event.stack = &stack;
    trace_note(kind, &event);
}
