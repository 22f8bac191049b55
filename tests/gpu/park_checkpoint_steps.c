/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A process that can be checkpointed, and the steps. See park_checkpoint.h.
 */
#include "tests/gpu/park_checkpoint.h"

#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PATTERN 0x5a5a1234u

struct checkpoint_calls call;
struct prepared prepared;

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

CUresult map_at(CUdeviceptr at, size_t bytes)
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

/* Asks the driver, for a process that is this one or another. */
static int ask_step(int which, int pid)
{
    struct lock_args lock = {.timeout_ms = 5000};

    if (which == LOCK)
        return call.cuCheckpointProcessLock(pid, &lock);
    if (which == CHECKPOINT)
        return call.cuCheckpointProcessCheckpoint(pid, NULL);
    if (which == RESTORE)
        return call.cuCheckpointProcessRestore(pid, NULL);
    return call.cuCheckpointProcessUnlock(pid, NULL);
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

void prepare(size_t block_bytes)
{
    start_helper();
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

unsigned wrong_words(size_t bytes)
{
    uint32_t *seen = malloc(bytes);
    unsigned wrong = 0;

    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(seen, prepared.block, bytes));
    for (size_t i = 0; i < bytes / 4; i++)
        wrong += seen[i] != PATTERN;
    free(seen);
    return wrong;
}

/* --- the steps of a checkpoint, by a thread with a time limit -------------------------------- */

const char *const step_names[] = {"lock", "checkpoint", "restore", "unlock"};

static struct step {
    int which;
    atomic_int rc; /* -1: not yet */
    double ms;
} step;

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

int await_step(void)
{
    uint64_t end_ns = driver_now_ns() + STEP_S * UINT64_C(1000000000);

    while (step.rc < 0 && driver_now_ns() < end_ns)
        usleep(200);
    return step.rc;
}

int take_step(int which)
{
    pthread_t thread;

    step.which = which;
    step.rc = -1;
    if (pthread_create(&thread, NULL, do_step, NULL))
        return -1;
    pthread_detach(thread);
    return await_step();
}

double step_ms(void)
{
    return step.ms;
}

bool take_steps(int first, int last)
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
