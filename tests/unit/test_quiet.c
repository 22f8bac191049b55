/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/quiet.c: what refuses a park, and what it waits for. The test stands for the rest of
 * the process: two records of contexts, what the driver says of each, and the gate. */
#include "pool/pool.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/context/submitter.h"
#include "shim/driver/backing.h"
#include "shim/driver/capture.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/error.h"
#include "shim/park/gate.h"
#include "shim/park/quiet.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/state.h"
#include "shim/share/peer.h"
#include "tests/unit/cases.h"

#define PRIMARY ((CUcontext)(uintptr_t)0x100)
#define CREATED ((CUcontext)(uintptr_t)0x200)
#define ACCESSOR ((CUcontext)(uintptr_t)0x300)
#define ACCESSORS_KNOWN 512

_Atomic uint32_t state_detours_now;
_Atomic int state_now = STATE_ON;
_Atomic(struct context *) context_records[CONTEXTS_MAX];
atomic_int context_count;
static struct context first, second;

/* The world. */
static struct {
    bool events, capture, missed, sees_all, registers, closing;
    bool ends_beside;        /* a thread wants to end a context that is being asked */
    const char *link;        /* what every open file is */
    CUcontext ending, asked; /* a context that nobody can pin; the one that was asked last */
    bool primary_is_active;  /* PRIMARY is device 0's */
    CUresult says;           /* the driver, of every context that is asked by an event */
    unsigned busy_looks,
        looks;        /* so often the pools say that work runs; how often they were asked */
    size_t accessors; /* all are ACCESSOR */
    unsigned gate_depth, pauses; /* of fork_gate; of gate_pause */
    unsigned cancel_at;          /* this pause ends with an arrival; 0: none */
} world;

bool pool_is_idle(struct pool *p)
{
    return ++world.looks > world.busy_looks;
}

bool context_pin(struct context *c)
{
    return atomic_load(&c->ctx) != world.ending;
}

void context_unpin(struct context *c)
{
}

bool stream_watch_sees_all(void)
{
    assert_int_equal(world.gate_depth, 1);
    return world.sees_all;
}

bool backing_library_is_loaded(void)
{
    assert_int_equal(world.gate_depth, 1);
    return world.registers;
}

void fork_gate_enter(void)
{
    world.gate_depth++;
}

void fork_gate_leave(void)
{
    world.gate_depth--;
}

bool capture_open(void)
{
    return world.capture;
}

bool submitters_are_missed(void)
{
    return world.missed;
}

CUcontext device_primary(CUdevice device)
{
    return device == 0 ? PRIMARY : NULL;
}

bool device_primary_is_active(CUdevice device)
{
    return device == 0 && world.primary_is_active;
}

bool device_fence_has_events(void)
{
    return world.events;
}

static unsigned num_turns;

/* Of a thread that is about to end a context. */
void spin_pause(unsigned turn)
{
    num_turns++;
}

CUresult device_fence_ask(CUcontext ctx)
{
    world.asked = ctx;
    if (world.ends_beside) {
        quiet_ender_begins();
        quiet_ender_ends();
    }
    return world.says;
}

bool error_is_loss(CUresult rc)
{
    return rc == CUDA_ERROR_ILLEGAL_ADDRESS;
}

bool peer_accessors(CUcontext *ctx, size_t max, size_t *count)
{
    *count = world.accessors < max ? world.accessors : max;
    for (size_t i = 0; i < *count; i++)
        ctx[i] = ACCESSOR;
    return world.accessors <= max;
}

bool gate_is_closing(void)
{
    return world.closing;
}

bool gate_pause(uint64_t ns)
{
    assert_true(ns <= MS_NS);
    if (++world.pauses == world.cancel_at)
        world.closing = false;
    return world.closing;
}

ssize_t __wrap_readlinkat(int folder, const char *name, char *target, size_t size_bytes);
ssize_t __wrap_readlinkat(int folder, const char *name, char *target, size_t size_bytes)
{
    size_t length = strlen(world.link);
    assert_true(length < size_bytes);
    if (*name == '.')
        return -1; /* no open file */
    memcpy(target, world.link, length);
    return (ssize_t)length;
}

static void add(struct context *c, CUcontext ctx, CUdevice device)
{
    static char pool;
    memset(c, 0, sizeof *c);
    c->device = device;
    c->pool = (struct pool *)(void *)&pool;
    c->config.backing = BACKING_ARENA;
    atomic_store(&c->ctx, ctx);
    atomic_store(&c->backend.base.has_order, true);
    atomic_store(&context_records[atomic_fetch_add(&context_count, 1)], c);
}

/* Nothing forbids a park. */
static int setup(void **state)
{
    memset(&world, 0, sizeof world);
    world.events = world.sees_all = world.closing = true;
    world.link = "/dev/null";
    atomic_store(&context_count, 0);
    add(&first, PRIMARY, 0);
    add(&second, CREATED, 1);
    return 0;
}

#define CASE(name) TEST_WITH(name, setup, NULL)

static void expect(const char *why, const char *words)
{
    if (!words)
        assert_null(why);
    else if (!why || !strstr(why, words))
        fail_msg("\"%s\" is not \"%s\"", why ? why : "nothing", words);
}

CASE(nothing_refuses_a_quiet_process)
{
    expect(quiet_refusal(), NULL);
    expect(quiet_await(0), NULL);
    expect(quiet_look(), NULL);
    assert_int_equal(world.gate_depth, 0);
}

CASE(what_nobody_sees_refuses)
{
    world.sees_all = false;
    expect(quiet_refusal(), "submits work unseen");
    world.sees_all = true;
    world.missed = true;
    expect(quiet_refusal(), "more threads");
    world.missed = false;
    world.capture = true;
    expect(quiet_refusal(), "capture");
}

CASE(memory_that_may_be_registered_refuses)
{
    static const char *const files[] = {"/dev/infiniband/uverbs3", "/dev/nvidia-fs0",
                                        "/dev/gdrdrv"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        world.link = files[i];
        expect(quiet_refusal(), "network card");
    }
    world.link = "/dev/infiniband/rdma_cm"; /* it registers nothing */
    expect(quiet_refusal(), NULL);
    world.registers = true;
    expect(quiet_refusal(), "network card");
}

static void *look_alone(void *unused)
{
    while (!access("/proc/self/cwd", F_OK)) /* the first thread gives it back behind its files */
        usleep(1000);
    const char *why = quiet_refusal();
    _exit(!why || !strstr(why, "network card"));
}

/* The kernel lists no open files under the number of such a process. */
CASE(so_it_does_where_the_first_thread_has_ended)
{
    pthread_t other;
    world.link = "/dev/infiniband/uverbs3";
    pid_t child = fork();
    if (!child) {
        pthread_create(&other, NULL, look_alone, NULL);
        pthread_exit(NULL);
    }
    assert_int_equal(child_status(child), 0);
}

CASE(contexts_that_cannot_be_parked_refuse)
{
    world.events = false;
    expect(quiet_refusal(), "12.5");
    world.events = true;
    second.redzone_bytes = 512;
    expect(quiet_refusal(), "REDZONE");
    second.redzone_bytes = 0;
    atomic_store(&second.lost_code, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect(quiet_refusal(), "lost");
    atomic_store(&second.lost_code, 0);
    second.config.backing = BACKING_SEGMENT;
    expect(quiet_refusal(), NULL);
    first.config.backing = BACKING_SEGMENT;
    expect(quiet_refusal(), "arenas");
    atomic_store(&first.hidden, true);
    atomic_store(&second.hidden, true);
    expect(quiet_refusal(), "no pool");
}

CASE(it_waits_until_the_work_ends)
{
    world.busy_looks = 5;
    expect(quiet_await(clock_now_ns() + 10 * SEC_NS), NULL);
    assert_true(world.pauses > 0);
}

CASE(work_that_goes_on_refuses_in_the_end)
{
    world.busy_looks = UINT32_MAX;
    expect(quiet_await(clock_now_ns() + MS_NS), "still runs");
    expect(quiet_look(), "still runs");
}

/* Before it waits, while it waits, and in the very look that finds no work. */
CASE(an_arrival_ends_the_wait)
{
    world.busy_looks = UINT32_MAX;
    world.cancel_at = 3;
    expect(quiet_await(clock_now_ns() + 10 * SEC_NS), "used the GPU meanwhile");
    assert_int_equal(world.pauses, 3);
    world.busy_looks = 0;
    expect(quiet_await(clock_now_ns() + 10 * SEC_NS), "used the GPU meanwhile");
}

CASE(a_context_that_ends_or_is_lost_refuses)
{
    world.ending = CREATED;
    expect(quiet_await(0), "ending");
    world.ending = NULL;
    atomic_store(&second.lost_code, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect(quiet_await(0), "lost");
}

CASE(a_capture_that_began_refuses)
{
    world.capture = true;
    expect(quiet_await(0), "capture");
    assert_int_equal(world.looks, 0);
}

/* The pool's own events have failed: it says "idle" without knowledge. */
CASE(a_pool_without_events_is_not_believed)
{
    atomic_store(&second.backend.base.has_order, false);
    expect(quiet_refusal(), NULL);
    expect(quiet_await(0), NULL);
    assert_ptr_equal(world.asked, CREATED);
    world.says = CUDA_ERROR_NOT_READY;
    expect(quiet_await(0), "still runs");
    world.says = CUDA_ERROR_NOT_PERMITTED;
    expect(quiet_await(0), "does not say");
    world.says = CUDA_ERROR_ILLEGAL_ADDRESS;
    expect(quiet_await(0), "lost");
    world.says = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    expect(quiet_await(0), "capture");
    world.says = CUDA_ERROR_DEINITIALIZED;
    expect(quiet_await(0), "ending");
}

CASE(contexts_without_a_pool_are_asked)
{
    world.accessors = 2;
    expect(quiet_await(0), NULL);
    assert_ptr_equal(world.asked, ACCESSOR);
    world.says = CUDA_ERROR_NOT_READY;
    expect(quiet_await(0), "still runs");
    world.says = CUDA_SUCCESS;
    world.accessors = ACCESSORS_KNOWN + 1;
    expect(quiet_await(0), "more contexts");
}

CASE(a_context_that_may_be_ending_is_not_asked)
{
    world.accessors = 1;
    quiet_ender_begins();
    expect(quiet_look(), "ending");
    assert_null(world.asked);
    quiet_ender_ends();
    expect(quiet_look(), NULL);
    assert_ptr_equal(world.asked, ACCESSOR);
}

CASE(who_ends_a_context_waits_while_it_is_asked)
{
    world.accessors = 1;
    world.ends_beside = true;
    num_turns = 0;
    expect(quiet_look(), NULL);
    assert_int_equal(num_turns, CONTEXT_AWAIT_TURNS);
    num_turns = 0;
    quiet_ender_begins();
    quiet_ender_ends();
    assert_int_equal(num_turns, 0);
}

CASE(a_primary_context_without_a_pool_is_asked)
{
    world.primary_is_active = true;
    world.says = CUDA_ERROR_NOT_READY;
    expect(quiet_await(0), NULL); /* its pool knows */
    atomic_store(&first.ctx, CREATED);
    expect(quiet_await(0), "still runs");
    assert_ptr_equal(world.asked, PRIMARY);
    world.primary_is_active = false;
    expect(quiet_await(0), NULL);
}

PLAY_TESTS
