/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's checkpoint of the own process, with an arena that is away as a parked one is.
 *   self    the process locks, checkpoints, restores and unlocks itself, twice, the second time
 *           with registered host memory. Its bytes must be right, its graph must run, and memory
 *           must be mappable in the reserved range. With BYTES once.
 *   full    another process takes the whole device while this one is checkpointed. What does a
 *           restore answer without room, and again with room?
 * What it means: if self fails, a parked process's context can leave the GPU only with the help of
 * another process. If full gives no success later, the process is lost, and a wake must never
 * restore without room: shim/park/whole.h has that from 580.
 *
 *   park_checkpoint self|full [BYTES]
 * BYTES: what it saves (default 64 MiB, of `full` 2 GiB). Exit status: 0; 1 if what was saved is
 * wrong, or if `self` fails; 77 without checkpoints.
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
#include <sys/wait.h>
#include <unistd.h>

enum { PART_S = 80, STEP_S = 25, RUNNING = 0 };
#define MIB ((size_t)1 << 20)
#define PATTERN 0x5a5a1234u
#define AWAY_BYTES (64 * MIB)
#define LOOK_BYTES (2048 * MIB)

enum { LOCK, CHECKPOINT, RESTORE, UNLOCK, STATE, CALLS };
static const char *const names[CALLS] = {"Lock", "Checkpoint", "Restore", "Unlock", "GetState"};
static int (*calls[CALLS])(int pid, void *args);

static CUstream stream;
static CUgraphExec exec;
static CUdeviceptr block, away;
static size_t block_bytes;

/* Between this process and the one that fills the device */
static struct shared {
    atomic_bool may_fill, is_full, may_end;
} *shared;

/* --- what the process has -------------------------------------------------------------------- */

static CUresult map_away(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult rc = driver.cuMemCreate(&handle, AWAY_BYTES, &prop, 0);

    rc = rc ? rc : driver.cuMemMap(away, AWAY_BYTES, 0, handle, 0);
    rc = rc ? rc : driver.cuMemSetAccess(away, AWAY_BYTES, &access, 1);
    rc = rc ? rc : driver.cuMemRelease(handle);
    rc = rc ? rc : driver.cuMemsetD32_v2(away, 2, AWAY_BYTES / 4);
    return rc ? rc : driver.cuCtxSynchronize();
}

/* A graph of one kernel, which writes the pattern into the block. */
static void make_graph(void)
{
    uint64_t n_words = 1024;
    uint32_t v = PATTERN;
    CUfunction fill;
    CUmodule module;
    CUgraph graph;

    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill, module, "fill"));
    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_CHECK(driver.cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, stream,
                                       (void *[]){&block, &n_words, &v}, NULL));
    DRIVER_CHECK(driver.cuStreamEndCapture(stream, &graph));
    DRIVER_CHECK(driver.cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static void prepare(void)
{
    char symbol[64];

    driver_start(0);
    for (int i = 0; i < CALLS; i++) {
        snprintf(symbol, sizeof symbol, "cuCheckpointProcess%s", names[i]);
        *(void **)&calls[i] = dlsym(driver.handle, symbol);
        if (!calls[i]) {
            printf("skip: the driver has no checkpoints\n");
            exit(EXIT_SKIP);
        }
    }
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, block_bytes));
    DRIVER_CHECK(driver.cuMemsetD32_v2(block, PATTERN, block_bytes / 4));
    make_graph();
    DRIVER_CHECK(driver.cuMemAddressReserve(&away, AWAY_BYTES, 0, 0, 0));
    DRIVER_CHECK(map_away());
    DRIVER_CHECK(driver.cuMemUnmap(away, AWAY_BYTES));
}

static unsigned wrong_words(void)
{
    size_t bytes = block_bytes < LOOK_BYTES ? block_bytes : LOOK_BYTES;
    uint32_t *seen = malloc(bytes);
    unsigned wrong = 0;

    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(seen, block + block_bytes - bytes, bytes));
    for (size_t i = 0; i < bytes / 4; i++)
        wrong += seen[i] != PATTERN;
    free(seen);
    return wrong;
}

/* --- a step, on a thread of its own ---------------------------------------------------------- */

static struct step {
    int which;
    atomic_int rc; /* -1: not yet */
} step;

static void *make_call(void *unused)
{
    /* Headers before 12.8 do not declare this: the time limit, and what is reserved. */
    struct {
        unsigned timeout_ms, reserved;
        uint64_t more[7];
    } lock = {.timeout_ms = 5000};

    step.rc = calls[step.which]((int)getpid(), step.which == LOCK ? &lock : NULL);
    return unused;
}

static int await_step(void)
{
    uint64_t end_ns = driver_now_ns() + STEP_S * UINT64_C(1000000000);

    while (step.rc < 0 && driver_now_ns() < end_ns)
        usleep(200);
    return step.rc;
}

/* The code, which is printed with the time; -1: no return in STEP_S, and the thread stays. */
static int take_step(const char *when, int which)
{
    uint64_t start_ns = driver_now_ns();
    pthread_t thread;

    step.which = which;
    step.rc = -1;
    if (pthread_create(&thread, NULL, make_call, NULL))
        return -1;
    pthread_detach(thread);
    await_step();
    printf("%s: %s %d in %.1f ms\n", when, names[which], step.rc,
           (double)(driver_now_ns() - start_ns) / 1e6);
    fflush(stdout);
    return step.rc;
}

/* --- the parts ------------------------------------------------------------------------------- */

/* As the library's staging memory is. */
static void register_memory(void)
{
    char *p = mmap(NULL, AWAY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    madvise(p, AWAY_BYTES, MADV_DONTFORK);
    DRIVER_CHECK(driver.cuMemHostRegister_v2(p, AWAY_BYTES, CU_MEMHOSTREGISTER_PORTABLE));
}

static int play_self(void *unused)
{
    int cycles = block_bytes ? 1 : 2;

    block_bytes = block_bytes ? block_bytes : 64 * MIB;
    prepare();
    for (int cycle = 0; cycle < cycles; cycle++) {
        unsigned wrong;
        CUresult mapped, launched;

        if (cycle == 1)
            register_memory();
        for (int which = LOCK; which <= UNLOCK; which++)
            if (take_step(cycle ? "registered" : "self", which))
                return 1;
        wrong = wrong_words();
        launched = driver.cuGraphLaunch(exec, stream);
        launched = launched ? launched : driver.cuCtxSynchronize();
        mapped = map_away();
        printf("self: wrong words %u, graph %d, the range mapped again %d\n", wrong, launched,
               mapped);
        if (wrong || launched || mapped)
            return 1;
        DRIVER_CHECK(driver.cuMemUnmap(away, AWAY_BYTES));
    }
    return 0;
}

/* Takes what is free, down to pieces of 2 MiB, and holds it. */
static void fill_device(void)
{
    size_t sizes[] = {1024 * MIB, 64 * MIB, 2 * MIB};
    CUdeviceptr taken;

    while (!shared->may_fill)
        usleep(1000);
    driver_start(0);
    for (int i = 0; i < 3; i++)
        while (!driver.cuMemAlloc_v2(&taken, sizes[i]))
            ;
    shared->is_full = true;
    while (!shared->may_end)
        usleep(1000);
}

static int play_full(void *unused)
{
    int state = -1, tight, roomy;
    unsigned wrong;
    pid_t filler = fork();

    block_bytes = block_bytes ? block_bytes : 2048 * MIB;
    if (filler == 0) {
        fill_device();
        _exit(0);
    }
    prepare();
    if (take_step("full", LOCK) || take_step("full", CHECKPOINT))
        return 1;
    shared->may_fill = true;
    while (!shared->is_full && waitpid(filler, NULL, WNOHANG) == 0)
        usleep(1000);
    tight = take_step("no room", RESTORE);
    shared->may_end = true;
    waitpid(filler, NULL, 0);
    /* One that has not returned goes on by itself, or never. */
    roomy = tight < 0 ? await_step() : tight == 0 ? 0 : take_step("with room", RESTORE);
    if (roomy >= 0)
        take_step("with room", UNLOCK);
    calls[STATE]((int)getpid(), &state);
    wrong = state == RUNNING ? wrong_words() : 0;
    printf("restore without room %d, with room %d, then state %d, wrong words %u\n", tight, roomy,
           state, wrong);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    bool is_full = argc > 1 && !strcmp(argv[1], "full");
    int status;

    if (argc > 2)
        block_bytes = strtoull(argv[2], NULL, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    status = child_run(is_full ? play_full : play_self, NULL, PART_S);
    if (status > 1 && status != EXIT_SKIP)
        printf("%s\n", child_words(status));
    return status > EXIT_SKIP ? 1 : status;
}
