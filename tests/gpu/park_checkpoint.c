/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's checkpoint of the own process, with an arena that is away.
 *
 * The questions:
 *   self    can a process lock, checkpoint, restore and unlock itself? Are its bytes right
 *           afterwards, do its graphs run, can a reserved range without memory be mapped?
 *   calls   which calls block while the process is locked, or checkpointed, and which answer?
 *   full    what does a restore do on a device that has no room? Does a later one succeed?
 * What it means:
 *   self fails: the context of a parked process can leave the GPU only with the help of another
 *           process, which needs the right to do so.
 *   calls   a call that answers is safe while checkpointed. A call that blocks must not be made by
 *           the library's own threads; if the library wraps it, the wrapper wakes the process first
 *           or answers from its records; if not, the process sleeps there until somebody else wakes
 *           it. cuCtxGetCurrent blocks: allocations must stay off it.
 *   full    an error, and success later: a wake may try again. No success later, no end: a wake
 *           must never try without room.
 *
 *   park_checkpoint [--limit MS] [--each] [--other] [--bytes N] self|calls|full ..
 * --limit: a call that takes longer blocks (default 150). --each: a checkpoint for each call, so
 * that no call waits for another one's lock (a second for each). --bytes: what `full` saves
 * (default 2 GiB). Each part is a process of its own with a time limit. Exit status: 0, 1 if what
 * was saved is wrong or lost, 77 without checkpoints.
 */
#include "tests/gpu/child.h"
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS_MAX = 128, TURNS = 4, PART_S = 60, STEP_S = 20 };
#define MIB ((size_t)1 << 20)
#define PATTERN 0x5a5a1234u

static struct {
    unsigned limit_ms;
    bool is_each, is_other;
    size_t bytes;
} options = {.limit_ms = 150, .bytes = 2048 * MIB};

#define LOOKED_UP(symbol) __typeof__(symbol) *symbol;
static struct {
    LOOKED_UP(cuCheckpointProcessLock)
    LOOKED_UP(cuCheckpointProcessCheckpoint)
    LOOKED_UP(cuCheckpointProcessRestore)
    LOOKED_UP(cuCheckpointProcessUnlock)
    LOOKED_UP(cuCheckpointProcessGetState)
#include "tests/gpu/park_checkpoint.def"
} call;

/* Made before the first lock, used by all calls. */
static struct {
    CUcontext context;
    CUstream stream;
    CUevent event, other_event;
    CUmodule module;
    CUfunction spin, fill;
    CUgraphExec exec;
    CUmemoryPool pool;
    CUmemLocation location;
    CUmemAllocationProp prop;
    CUdeviceptr block, blocks[TURNS], mapped[TURNS], away;
    void *host, *pages[TURNS];
} prepared;

/* Between processes: what fills the device (`full`), and what makes the steps (--other). */
static struct {
    atomic_bool may_fill, is_full, may_end;
    size_t filled_bytes;
    atomic_int wanted, answer; /* a step, its code; -1: none */
} *shared;

static void CUDA_CB host_function(void *unused)
{
    (void)unused;
}

static void look_up(void)
{
    *(void **)&call.cuCheckpointProcessLock = dlsym(driver.handle, "cuCheckpointProcessLock");
    *(void **)&call.cuCheckpointProcessCheckpoint =
        dlsym(driver.handle, "cuCheckpointProcessCheckpoint");
    *(void **)&call.cuCheckpointProcessRestore = dlsym(driver.handle, "cuCheckpointProcessRestore");
    *(void **)&call.cuCheckpointProcessUnlock = dlsym(driver.handle, "cuCheckpointProcessUnlock");
    *(void **)&call.cuCheckpointProcessGetState =
        dlsym(driver.handle, "cuCheckpointProcessGetState");
#define LOOKED_UP(symbol) *(void **)&call.symbol = dlsym(driver.handle, #symbol);
#include "tests/gpu/park_checkpoint.def"
    if (!call.cuCheckpointProcessLock || !call.cuCheckpointProcessGetState) {
        printf("skip: the driver has no checkpoints\n");
        fflush(stdout);
        _exit(EXIT_SKIP);
    }
}

/* --- what the process has -------------------------------------------------------------------- */

static CUresult map_at(CUdeviceptr at, size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = {.location = prepared.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult rc = driver.cuMemCreate(&handle, bytes, &prepared.prop, 0);

    rc = rc ? rc : driver.cuMemMap(at, bytes, 0, handle, 0);
    rc = rc ? rc : driver.cuMemSetAccess(at, bytes, &access, 1);
    return rc ? rc : driver.cuMemRelease(handle);
}

static void make_graph(void)
{
    uint64_t n_words = 1024;
    uint32_t v = PATTERN;
    CUgraph graph;

    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(prepared.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_CHECK(driver.cuLaunchKernel(prepared.fill, 1, 1, 1, 64, 1, 1, 0, prepared.stream,
                                       (void *[]){&prepared.block, &n_words, &v}, NULL));
    DRIVER_CHECK(driver.cuStreamEndCapture(prepared.stream, &graph));
    DRIVER_CHECK(driver.cuGraphInstantiateWithFlags(&prepared.exec, graph, 0));
}

/* A range whose memory is gone, as a parked arena's. */
static void make_away(void)
{
    DRIVER_CHECK(driver.cuMemAddressReserve(&prepared.away, 64 * MIB, 0, 0, 0));
    DRIVER_CHECK(map_at(prepared.away, 64 * MIB));
    DRIVER_CHECK(driver.cuMemsetD32_v2(prepared.away, 1, 1024));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    DRIVER_CHECK(driver.cuMemUnmap(prepared.away, 64 * MIB));
}

static void prepare(size_t block_bytes)
{
    prepared.context = driver_start(0);
    look_up();
    prepared.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    prepared.prop =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = prepared.location};
    DRIVER_CHECK(driver.cuStreamCreate(&prepared.stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuEventCreate(&prepared.event, CU_EVENT_DEFAULT));
    DRIVER_CHECK(driver.cuEventCreate(&prepared.other_event, CU_EVENT_DISABLE_TIMING));
    DRIVER_CHECK(driver.cuModuleLoadData(&prepared.module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&prepared.spin, prepared.module, "spin"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&prepared.fill, prepared.module, "fill"));
    DRIVER_CHECK(driver.cuDeviceGetDefaultMemPool(&prepared.pool, 0));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&prepared.block, block_bytes));
    DRIVER_CHECK(driver.cuMemsetD32_v2(prepared.block, PATTERN, block_bytes / 4));
    for (int turn = 0; turn < TURNS; turn++) {
        DRIVER_CHECK(driver.cuMemAlloc_v2(&prepared.blocks[turn], 4 * MIB));
        DRIVER_CHECK(driver.cuMemAddressReserve(&prepared.mapped[turn], 2 * MIB, 0, 0, 0));
        DRIVER_CHECK(map_at(prepared.mapped[turn], 2 * MIB));
        prepared.pages[turn] = aligned_alloc(4096, 4096);
    }
    DRIVER_CHECK(driver.cuMemAllocHost_v2(&prepared.host, 65536));
    make_graph();
    make_away();
    DRIVER_CHECK(driver.cuEventRecord(prepared.event, prepared.stream));
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

/* --- the steps of a checkpoint, by a thread with a time limit -------------------------------- */

enum { LOCK, CHECKPOINT, RESTORE, UNLOCK };
static const char *const step_names[] = {"lock", "checkpoint", "restore", "unlock"};

static struct step {
    int which;
    atomic_int rc; /* -1: not yet */
    double ms;
} step;

/* Asks the driver, for a process that is this one or another. */
static int ask_step(int which, int pid)
{
    CUcheckpointLockArgs lock = {.timeoutMs = 5000};

    if (which == LOCK)
        return (int)call.cuCheckpointProcessLock(pid, &lock);
    if (which == CHECKPOINT)
        return (int)call.cuCheckpointProcessCheckpoint(pid, NULL);
    if (which == RESTORE)
        return (int)call.cuCheckpointProcessRestore(pid, NULL);
    return (int)call.cuCheckpointProcessUnlock(pid, NULL);
}

/* With --other a helper makes the calls: a child, forked before the driver was opened. */
static void help(int pid)
{
    driver_open();
    look_up();
    if (driver.cuInit(0))
        return;
    for (;;) {
        int which = shared->wanted;

        if (which < 0) {
            usleep(100);
            continue;
        }
        shared->wanted = -1;
        shared->answer = ask_step(which, pid);
    }
}

static void start_helper(void)
{
    int pid = (int)getpid(), helper;

    shared->wanted = -1;
    helper = options.is_other ? fork() : 0;
    if (options.is_other && helper == 0) {
        help(pid);
        _exit(1);
    }
    /* Where only ancestors may look into a process. */
    if (options.is_other)
        prctl(PR_SET_PTRACER, helper, 0, 0, 0);
}

static int ask_helper(int which)
{
    shared->answer = -1;
    shared->wanted = which;
    while (shared->answer < 0)
        usleep(100);
    return shared->answer;
}

static void *do_step(void *unused)
{
    uint64_t start_ns = driver_now_ns();
    int rc = options.is_other ? ask_helper(step.which) : ask_step(step.which, (int)getpid());

    step.ms = (double)(driver_now_ns() - start_ns) / 1e6;
    step.rc = rc;
    return unused;
}

/* The code; -1: it does not return, and the thread stays. */
static int take_step(int which)
{
    uint64_t end_ns = driver_now_ns() + STEP_S * UINT64_C(1000000000);
    pthread_t thread;

    step.which = which;
    step.rc = -1;
    if (pthread_create(&thread, NULL, do_step, NULL))
        return -1;
    pthread_detach(thread);
    while (step.rc < 0 && driver_now_ns() < end_ns)
        usleep(200);
    return step.rc;
}

static bool take_steps(int first, int last)
{
    for (int which = first; which <= last; which++) {
        int rc = take_step(which);

        if (rc) {
            printf("  %s: %s %d\n", step_names[which], rc < 0 ? "does not return" : "code", rc);
            return false;
        }
    }
    return true;
}

/* --- self ------------------------------------------------------------------------------------ */

static unsigned wrong_words(CUdeviceptr at, size_t bytes)
{
    uint32_t *seen = malloc(bytes);
    unsigned wrong = 0;

    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(seen, at, bytes));
    for (size_t i = 0; i < bytes / 4; i++)
        wrong += seen[i] != PATTERN;
    free(seen);
    return wrong;
}

static int play_self(void *unused)
{
    bool is_good = true;

    (void)unused;
    start_helper();
    prepare(64 * MIB);
    for (int cycle = 0; cycle < 2; cycle++) {
        unsigned wrong;
        CUresult mapped, launched;

        printf("self, cycle %d:", cycle + 1);
        for (int which = LOCK; which <= UNLOCK; which++) {
            int rc = take_step(which);

            if (rc < 0) {
                printf(" %s does not return\n", step_names[which]);
                return 1;
            }
            printf(" %s %d in %.1f ms,", step_names[which], rc, step.ms);
        }
        wrong = wrong_words(prepared.block, 64 * MIB);
        launched = driver.cuGraphLaunch(prepared.exec, prepared.stream);
        launched = launched ? launched : driver.cuCtxSynchronize();
        mapped = map_at(prepared.away, 64 * MIB);
        mapped = mapped ? mapped : driver.cuMemsetD32_v2(prepared.away, 2, 64 * MIB / 4);
        mapped = mapped ? mapped : driver.cuCtxSynchronize();
        printf(" wrong words %u, graph %d, the range mapped again %d\n", wrong, launched, mapped);
        is_good &= !wrong && !launched && !mapped;
        if (mapped)
            break;
        DRIVER_CHECK(driver.cuMemUnmap(prepared.away, 64 * MIB));
    }
    return is_good ? 0 : 1;
}

/* --- calls ----------------------------------------------------------------------------------- */

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
    CUipcMemHandle ipc;
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

static int play_calls(void *unused)
{
    bool is_good;

    (void)unused;
    start_helper();
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
    return is_good ? 0 : 1;
}

/* --- full ------------------------------------------------------------------------------------ */

/* Takes what is free, down to pieces of 2 MiB, and holds it. Another process than the one that
 * restores. */
static void fill_device(void)
{
    size_t sizes[] = {1024 * MIB, 64 * MIB, 2 * MIB}, sum = 0;
    CUdeviceptr block;

    while (!shared->may_fill)
        usleep(1000);
    driver_start(0);
    for (int i = 0; i < 3; i++)
        while (!driver.cuMemAlloc_v2(&block, sizes[i]))
            sum += sizes[i];
    shared->filled_bytes = sum;
    shared->is_full = true;
    while (!shared->may_end)
        usleep(1000);
}

static void print_step(const char *when, int which)
{
    int rc = take_step(which);

    if (rc < 0)
        printf("  %s: %s does not return in %d s\n", when, step_names[which], STEP_S);
    else
        printf("  %s: %s %d in %.1f ms\n", when, step_names[which], rc, step.ms);
    fflush(stdout);
}

static int play_full(void *unused)
{
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    unsigned wrong;
    pid_t filler;

    (void)unused;
    filler = fork();
    if (filler == 0) {
        fill_device();
        _exit(0);
    }
    start_helper();
    prepare(options.bytes);
    printf("full: a process with %zu MiB\n", options.bytes / MIB);
    if (!take_steps(LOCK, CHECKPOINT))
        return 1;
    shared->may_fill = true;
    while (!shared->is_full && waitpid(filler, NULL, WNOHANG) == 0)
        usleep(1000);
    printf("  another one has taken %zu MiB\n", shared->filled_bytes / MIB);
    print_step("no room", RESTORE);
    if (step.rc >= 0)
        print_step("no room, again", RESTORE);
    shared->may_end = true;
    waitpid(filler, NULL, 0);
    if (step.rc < 0)
        sleep(3);
    else
        print_step("with room", RESTORE);
    print_step("with room", UNLOCK);
    if (call.cuCheckpointProcessGetState)
        call.cuCheckpointProcessGetState((int)getpid(), &state);
    printf("  state %d\n", (int)state);
    fflush(stdout);
    if (state != CU_PROCESS_STATE_RUNNING)
        return 1;
    wrong = wrong_words(prepared.block, options.bytes);
    printf("  wrong words %u\n", wrong);
    return wrong ? 1 : 0;
}

/* --------------------------------------------------------------------------------------------- */

static int part(const char *name, int (*play)(void *unused))
{
    int status = child_run(play, NULL, PART_S);

    if (status > 1 && status != EXIT_SKIP)
        printf("%s: %s\n", name, child_words(status));
    return status;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*play)(void *unused);
    } parts[] = {{"self", play_self}, {"calls", play_calls}, {"full", play_full}};
    int worst = 0;

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;

        if (!strcmp(argv[i], "--each"))
            options.is_each = true;
        else if (!strcmp(argv[i], "--other"))
            options.is_other = true;
        else if (!strcmp(argv[i], "--limit") && has_value)
            options.limit_ms = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--bytes") && has_value)
            options.bytes = strtoull(argv[++i], NULL, 0);
        else
            for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
                if (!strcmp(argv[i], parts[j].name)) {
                    int status = part(parts[j].name, parts[j].play);
                    worst = status > worst ? status : worst;
                }
    }
    return worst > EXIT_SKIP ? 1 : worst;
}
