/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The part `calls` of park_checkpoint.c: which calls block in which state.
 */
#include "tests/gpu/park_checkpoint.h"
#include "tests/preload/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { CALLS_MAX = 128 };

static void CUDA_CB host_function(void *unused)
{
    (void)unused;
}

/* Where a call's outputs go. */
struct call_state {
    int turn, number;
    unsigned flags;
    unsigned long long long_long, long_number;
    size_t bytes, more_bytes;
    float ms;
    const char *text;
    void *pointer;
    CUcontext context;
    CUdeviceptr at;
    CUgraph graph;
    CUevent event;
    CUstream stream;
    CUmodule module;
    CUfunction function;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus capture;
};

#define CALL(table, symbol, args)                                                                  \
    static CUresult make_##symbol(struct call_state *c)                                            \
    {                                                                                              \
        (void)c;                                                                                   \
        return table.symbol args;                                                                  \
    }
#include "tests/gpu/park_checkpoint.def"

enum { RUNNING, LOCKED, CHECKPOINTED, STATES };
static const char *const state_names[] = {"running", "locked", "checkpointed"};

/* A call in one state: a thread that stands ready before the state begins. */
struct trial {
    CUresult (*make)(struct call_state *c);
    struct call_state state;
    pthread_t thread;
    bool has_thread, is_blocked;
    atomic_bool is_ready, may_go;
    atomic_int rc; /* -1: not yet */
};

static struct one_call {
    const char *name;
    CUresult (*make)(struct call_state *c);
    struct trial trials[STATES];
} calls[CALLS_MAX];
static int num_calls;

static void list_calls(void)
{
#define CALL(table, symbol, args)                                                                  \
    if (table.symbol)                                                                              \
        calls[num_calls++] = (struct one_call){.name = #symbol, .make = make_##symbol};
#include "tests/gpu/park_checkpoint.def"
}

static void *try_call(void *arg)
{
    struct trial *t = arg;

    driver.cuCtxSetCurrent(prepared.context);
    t->is_ready = true;
    while (!t->may_go)
        usleep(200);
    t->rc = (int)t->make(&t->state);
    return NULL;
}

static void make_ready(struct one_call *one, int state)
{
    struct trial *t = &one->trials[state];

    t->make = one->make;
    t->state.turn = state;
    t->rc = -1;
    t->has_thread = !pthread_create(&t->thread, NULL, try_call, t);
    while (t->has_thread && !t->is_ready)
        usleep(100);
}

static void let_go(struct trial *t)
{
    uint64_t end_ns = driver_now_ns() + options.limit_ms * UINT64_C(1000000);

    t->may_go = true;
    while (t->rc < 0 && driver_now_ns() < end_ns)
        usleep(50);
    t->is_blocked = t->rc < 0;
}

/* Behind the unlock each call has to return; false: one does not. */
static bool await(struct trial *t)
{
    uint64_t end_ns = driver_now_ns() + 5 * UINT64_C(1000000000);

    while (t->rc < 0 && driver_now_ns() < end_ns)
        usleep(200);
    if (t->rc < 0 || !t->has_thread)
        return false;
    pthread_join(t->thread, NULL);
    return true;
}

/* Tries calls[first] to calls[last - 1] in one stay in the state. */
static bool try_state(int state, int first, int last)
{
    bool is_back = true;

    for (int i = first; i < last; i++)
        make_ready(&calls[i], state);
    if (state != RUNNING && !take_steps(LOCK, state == LOCKED ? LOCK : CHECKPOINT))
        return false;
    /* Those first that answered locked: what blocks may hold what they need. */
    for (int pass = 0; pass < 2; pass++)
        for (int i = first; i < last; i++)
            if (calls[i].trials[LOCKED].is_blocked == (pass == 1))
                let_go(&calls[i].trials[state]);
    if (state != RUNNING && !take_steps(state == LOCKED ? UNLOCK : RESTORE, UNLOCK))
        return false;
    for (int i = first; i < last; i++)
        if (!await(&calls[i].trials[state])) {
            printf("  %s, begun while %s: never returns\n", calls[i].name, state_names[state]);
            is_back = false;
        }
    return is_back;
}

/* Of equal calls one line: what they do locked, what checkpointed. */
static void print_group(bool blocks_locked, bool blocks_checkpointed)
{
    int count = 0;

    for (int i = 0; i < num_calls; i++) {
        const struct trial *t = calls[i].trials;

        if (t[LOCKED].is_blocked != blocks_locked ||
            t[CHECKPOINTED].is_blocked != blocks_checkpointed)
            continue;
        if (count++ == 0)
            printf("locked: %s, checkpointed: %s:\n ", blocks_locked ? "BLOCKS" : "answers",
                   blocks_checkpointed ? "BLOCKS" : "answers");
        printf(" %s", calls[i].name);
        if (t[LOCKED].rc != t[RUNNING].rc || t[CHECKPOINTED].rc != t[RUNNING].rc)
            printf(" (running %d, locked %d, checkpointed %d)", t[RUNNING].rc, t[LOCKED].rc,
                   t[CHECKPOINTED].rc);
    }
    if (count)
        printf("\n  %d calls\n", count);
}

static int count_blocked(int state)
{
    int count = 0;

    for (int i = 0; i < num_calls; i++)
        count += calls[i].trials[state].is_blocked;
    return count;
}

int play_calls(void *unused)
{
    bool is_good;

    (void)unused;
    prepare(64 * MIB);
    list_calls();
    is_good = try_state(RUNNING, 0, num_calls);
    /* One stay for each call while locked, so that no call waits for what another one holds. */
    for (int i = 0; i < num_calls && is_good; i++)
        is_good = try_state(LOCKED, i, i + 1);
    for (int i = 0; i < num_calls && is_good; i += options.is_each ? 1 : num_calls)
        is_good = try_state(CHECKPOINTED, i, options.is_each ? i + 1 : num_calls);
    for (int group = 0; group < 4 && is_good; group++)
        print_group(group & 2, group & 1);
    printf("of %d calls %d block while locked, %d while checkpointed\n", num_calls,
           count_blocked(LOCKED), count_blocked(CHECKPOINTED));
    return is_good ? 0 : 1;
}
