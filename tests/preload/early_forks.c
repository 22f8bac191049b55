/* SPDX-License-Identifier: BSD-2-Clause */
/* Children of processes whose threads make calls that take locks of the library's before it has
 * started, which is at the first allocation. The children make the same calls, and must not wait.
 */
#include "tests/preload/scene.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* of cuCtxDetach */

enum { FLOODS = 3, CHILD_S = 10, REFUSED = 5, SERVED = 6 };

static atomic_bool flood_stops;

typedef CUresult (*call_fn)(void);

static CUresult release(void)
{
    return cuDevicePrimaryCtxRelease(0);
}

static CUresult reset(void)
{
    return cuDevicePrimaryCtxReset(0);
}

static CUresult detach(void)
{
    return cuCtxDetach(NULL);
}

static CUresult destroy_pool(void)
{
    return cuMemPoolDestroy(NULL);
}

static CUresult make_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool = NULL;
    CUresult rc = cuMemPoolCreate(&pool, &props);
    return rc ? rc : cuMemPoolDestroy(pool);
}

static CUresult disable_access(void)
{
    CUcontext here = NULL;
    CUresult rc = cuCtxGetCurrent(&here);
    return rc ? rc : cuCtxDisablePeerAccess(here);
}

/* On a stream of the thread's own; a child has that of the thread that forked. */
static CUresult capture(void)
{
    static __thread CUstream stream;
    CUgraph graph = NULL;
    CUresult rc = stream ? CUDA_SUCCESS : cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (!rc)
        rc = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (!rc)
        rc = cuStreamEndCapture(stream, &graph);
    return rc ? rc : cuGraphDestroy(graph);
}

static const call_fn ends[] = {release, reset, detach}, rest[] = {destroy_pool, make_pool},
                     with_context[] = {make_pool, disable_access, capture};

struct flood {
    const call_fn *calls;
    int num_calls;
    CUcontext ctx;
};

static void *run_flood(void *arg)
{
    const struct flood *f = arg;
    if (f->ctx)
        REQUIRE(cuCtxSetCurrent(f->ctx));
    while (!atomic_load(&flood_stops))
        for (int i = 0; i < f->num_calls; i++)
            f->calls[i]();
    return NULL;
}

static int child(const struct flood *f)
{
    bool refused = true;
    alarm(CHILD_S);
    for (int i = 0; i < f->num_calls; i++)
        refused &= f->calls[i]() != CUDA_SUCCESS;
    return refused ? REFUSED : SERVED;
}

/* Half of the children come of forks that run no handlers. Not under a sanitizer: a child would
 * find locks of its runtime taken. */
static bool half_without_handlers;

/* The library knows such a child by memory that the kernel wipes (since Linux 4.14). */
static bool kernel_wipes(void)
{
    void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return page != MAP_FAILED && madvise(page, 1, MADV_WIPEONFORK) == 0;
}

static pid_t fork_one(int number)
{
    if (half_without_handlers && number % 2 && !scene_sanitized())
        return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    return fork();
}

/* How many children were served, or did not end. */
static int fork_beside(const char *what, const call_fn *calls, int num_calls, CUcontext ctx)
{
    struct flood f = {calls, num_calls, ctx};
    pthread_t threads[FLOODS];
    int failed = 0;
    atomic_store(&flood_stops, false);
    for (int i = 0; i < FLOODS; i++)
        threads[i] = NEW_THREAD(run_flood, &f);
    fflush(stdout);
    for (int i = 0; i < (scene_simulated() ? 100 : 8); i++) {
        pid_t pid = fork_one(i);
        if (pid == 0)
            _exit(child(&f));
        int status = scene_wait(pid);
        if (status != REFUSED)
            fprintf(stderr, "child %d: %d\n", i, status);
        failed += status != REFUSED;
    }
    atomic_store(&flood_stops, true);
    for (int i = 0; i < FLOODS; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("children beside %s: %d failed\n", what, failed);
    return failed;
}

#define FORK_BESIDE(what, calls, ctx)                                                              \
    fork_beside(what, calls, (int)(sizeof calls / sizeof *calls), ctx)

/* CUDA works in a child whose parent has not initialised it, whatever the parent called. */
static int fork_and_use(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_S);
        _exit(gpu_open(0) || !NEW_FILLED(KIB, 3, NULL) || gpu_sync() ? REFUSED : SERVED);
    }
    bool served = scene_wait(pid) == SERVED;
    printf("a child of calls that all failed: %s\n", served ? "served" : "refused");
    return !served;
}

/* A handler of the program's that is registered before the library's, so that it is called first.
 */
static void release_in_child(void)
{
    alarm(CHILD_S);
    release();
    destroy_pool();
}

ACT(forks_with_handlers_of_the_program)
{
    scene_watchdog(120);
    REQUIRE(pthread_atfork(NULL, NULL, release_in_child));
    int failed = FORK_BESIDE("ends, with a handler", ends, NULL);
    return failed + FORK_BESIDE("pools, with a handler", rest, NULL) != 0;
}

ACT(forks_before_cuinit)
{
    scene_watchdog(120);
    half_without_handlers = kernel_wipes();
    int failed = FORK_BESIDE("ends before cuInit", ends, NULL);
    failed += FORK_BESIDE("pools before cuInit", rest, NULL);
    return failed + fork_and_use() != 0;
}

/* A sandbox, or a kernel of before 4.14. */
ACT(forks_where_the_kernel_wipes_no_memory)
{
    scene_watchdog(120);
    if (!scene_refuse(SYS_madvise, SYS_madvise, EPERM))
        scene_skip("no filter of system calls is to be had");
    half_without_handlers = true;
    int failed = FORK_BESIDE("ends", ends, NULL);
    REQUIRE(pthread_atfork(NULL, NULL, release_in_child));
    return failed + FORK_BESIDE("pools, with a handler", rest, NULL) != 0;
}

ACT(forks_after_cuinit)
{
    scene_watchdog(120);
    REQUIRE(cuInit(0));
    int failed = FORK_BESIDE("ends after cuInit", ends, NULL);
    return failed + FORK_BESIDE("pools after cuInit", rest, NULL) != 0;
}

/* On a real driver children hang bare as well (580.159: 2 of 8). */
ACT(forks_before_the_first_allocation)
{
    CUcontext primary;
    scene_start(1, 120);
    if (!scene_simulated())
        scene_skip("children hang bare as well");
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(capture());
    return FORK_BESIDE("pools and captures", with_context, primary) != 0;
}
