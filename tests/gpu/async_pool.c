/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver does with idle memory of its own pools (cuMemAllocAsync, graphs): who gets it,
 * what a trim gives back, how long that takes, and what a capture allows. Prints one fact a line.
 * Numbers behind the names of calls are CUresult codes. Above the memory of the GPU that other
 * programs leave free nothing is touched.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define MIB ((size_t)1 << 20)
#define SPIN_NS UINT64_C(200000000)

#define FUNCTION(symbol) static __typeof__(symbol) *call_##symbol;
#define FUNCTIONS                                                                                  \
    FUNCTION(cuMemPoolGetAttribute)                                                                \
    FUNCTION(cuMemPoolCreate)                                                                      \
    FUNCTION(cuMemPoolDestroy)                                                                     \
    FUNCTION(cuMemAllocFromPoolAsync)                                                              \
    FUNCTION(cuThreadExchangeStreamCaptureMode)                                                    \
    FUNCTION(cuDeviceGetGraphMemAttribute)                                                         \
    FUNCTION(cuDeviceGraphMemTrim)
FUNCTIONS
#undef FUNCTION

static CUfunction spin;
static CUmemoryPool standard;

static void find_functions(void)
{
#define FUNCTION(symbol) *(void **)&call_##symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
}

static size_t free_bytes(void)
{
    size_t free = 0, total = 0;

    DRIVER_CHECK(driver.cuMemGetInfo_v2(&free, &total));
    return free;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = 0;

    DRIVER_CHECK(call_cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void print_pool(const char *when, CUmemoryPool pool)
{
    printf("  %s: reserved %" PRIu64 " MiB, used %" PRIu64 " MiB, free on the device %zu MiB\n",
           when, attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) / MIB,
           attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) / MIB, free_bytes() / MIB);
}

static double ms_since(uint64_t start_ns)
{
    return (double)(driver_now_ns() - start_ns) / 1e6;
}

static void keep_all(CUmemoryPool pool)
{
    cuuint64_t all = UINT64_MAX;

    DRIVER_CHECK(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

/* Leaves so many bytes idle in the pool. spins: the free is behind a kernel that still runs. */
static void fill(CUmemoryPool pool, size_t bytes, bool spins)
{
    uint64_t ns = SPIN_NS;
    CUdeviceptr block;

    keep_all(pool);
    DRIVER_CHECK(call_cuMemAllocFromPoolAsync(&block, bytes, pool, NULL));
    if (spins)
        DRIVER_CHECK(
            driver.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    DRIVER_CHECK(driver.cuMemFreeAsync(block, NULL));
    if (!spins)
        DRIVER_CHECK(driver.cuCtxSynchronize());
}

static void timed_trim(const char *what, CUmemoryPool pool, size_t keep)
{
    uint64_t start_ns = driver_now_ns();
    CUresult rc = driver.cuMemPoolTrimTo(pool, keep);

    printf("  %s: trim to %zu MiB: %d, %.2f ms\n", what, keep / MIB, rc, ms_since(start_ns));
}

/* --- who gets idle memory ------------------------------------------------------------------- */

static CUresult by_alloc(size_t bytes)
{
    CUdeviceptr block;
    CUresult rc = driver.cuMemAlloc_v2(&block, bytes);

    return rc ? rc : driver.cuMemFree_v2(block);
}

static CUresult by_create(size_t bytes)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    CUresult rc = driver.cuMemCreate(&handle, bytes, &props, 0);

    return rc ? rc : driver.cuMemRelease(handle);
}

static CUresult by_pool(CUmemoryPool pool, size_t bytes)
{
    CUdeviceptr block;
    CUresult rc = call_cuMemAllocFromPoolAsync(&block, bytes, pool, NULL);

    if (!rc)
        rc = driver.cuMemFreeAsync(block, NULL);
    DRIVER_CHECK(driver.cuCtxSynchronize());
    return rc;
}

static CUmemoryPool new_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;

    DRIVER_CHECK(call_cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUresult by_other_pool(size_t bytes)
{
    CUmemoryPool pool = new_pool();
    CUresult rc = by_pool(pool, bytes);

    DRIVER_CHECK(call_cuMemPoolDestroy(pool));
    return rc;
}

static CUresult by_standard_pool(size_t bytes)
{
    return by_pool(standard, bytes);
}

static void who_gets(const char *name, CUmemoryPool pool, bool spins)
{
    static const struct {
        const char *name;
        CUresult (*take)(size_t bytes);
    } means[] = {{"cuMemAlloc", by_alloc},
                 {"cuMemCreate", by_create},
                 {"another pool", by_other_pool},
                 {"the standard pool", by_standard_pool}};

    for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
        size_t idle = free_bytes() / 10 * 6 / (2 * MIB) * (2 * MIB);
        size_t wanted = (free_bytes() - idle + idle / 2) / (2 * MIB) * (2 * MIB);

        fill(pool, idle, spins);
        printf("%s%s, %s of %zu MiB:\n", name, spins ? ", freed behind a kernel" : "",
               means[i].name, wanted / MIB);
        print_pool("before", pool);
        uint64_t start_ns = driver_now_ns();
        CUresult rc = means[i].take(wanted);
        printf("  code %d, %.2f ms\n", rc, ms_since(start_ns));
        print_pool("after", pool);
        DRIVER_CHECK(driver.cuCtxSynchronize());
        DRIVER_CHECK(driver.cuMemPoolTrimTo(pool, 0));
    }
}

/* --- trims ---------------------------------------------------------------------------------- */

static void trims(void)
{
    CUdeviceptr block;

    printf("trims of the standard pool:\n");
    fill(standard, 4096 * MIB, false);
    timed_trim("idle", standard, 1024 * MIB);
    print_pool("after", standard);
    timed_trim("idle", standard, 0);
    print_pool("after", standard);
    fill(standard, 4096 * MIB, true);
    print_pool("freed behind a kernel", standard);
    timed_trim("freed behind a kernel", standard, 0);
    print_pool("after", standard);
    DRIVER_CHECK(driver.cuCtxSynchronize());
    print_pool("after the kernel", standard);
    timed_trim("after the kernel", standard, 0);
    print_pool("after", standard);
    DRIVER_CHECK(call_cuMemAllocFromPoolAsync(&block, 64 * MIB, standard, NULL));
    fill(standard, 4096 * MIB, false);
    timed_trim("beside a live block", standard, 0);
    print_pool("after", standard);
    DRIVER_CHECK(driver.cuMemFreeAsync(block, NULL));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    timed_trim("empty", standard, 0);
    timed_trim("empty", standard, 0);
}

/* A thread to which no context is current, as the library's own. */
static void *elsewhere(void *unused)
{
    cuuint64_t reserved = 0;
    int get = call_cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    uint64_t start_ns = driver_now_ns();
    int trim = driver.cuMemPoolTrimTo(standard, 0);

    printf("on a thread without a context: attribute %d (reserved %" PRIu64 " MiB), trim %d, "
           "%.2f ms, graph trim %d\n",
           get, reserved / MIB, trim, ms_since(start_ns), call_cuDeviceGraphMemTrim(0));
    return NULL;
}

static void without_context(void)
{
    pthread_t thread;

    fill(standard, 1024 * MIB, false);
    if (!pthread_create(&thread, NULL, elsewhere, NULL))
        pthread_join(thread, NULL);
    print_pool("after", standard);
}

static void in_capture(const char *name, CUstreamCaptureMode mode, bool relaxed)
{
    CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream;
    CUgraph graph = NULL;
    cuuint64_t reserved = 0;

    fill(standard, 512 * MIB, false);
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(stream, mode));
    if (relaxed)
        DRIVER_CHECK(call_cuThreadExchangeStreamCaptureMode(&own));
    int trim = driver.cuMemPoolTrimTo(standard, 0);
    int get = call_cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    int graph_get = call_cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                      &(cuuint64_t){0});
    int graph_trim = call_cuDeviceGraphMemTrim(0);
    if (relaxed)
        DRIVER_CHECK(call_cuThreadExchangeStreamCaptureMode(&own));
    int end = driver.cuStreamEndCapture(stream, &graph);
    printf("in a %s capture%s: trim %d, attribute %d (reserved %" PRIu64 " MiB), graph attribute "
           "%d, graph trim %d, end of the capture %d\n",
           name, relaxed ? ", in relaxed mode" : "", trim, get, reserved / MIB, graph_get,
           graph_trim, end);
    if (graph)
        DRIVER_CHECK(driver.cuGraphDestroy(graph));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(stream));
}

/* --- memory of graphs ----------------------------------------------------------------------- */

static void print_graphs(const char *when)
{
    cuuint64_t reserved = 0, used = 0;

    DRIVER_CHECK(
        call_cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    DRIVER_CHECK(call_cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    printf("  %s: reserved %" PRIu64 " MiB, used %" PRIu64 " MiB, free on the device %zu MiB\n",
           when, reserved / MIB, used / MIB, free_bytes() / MIB);
}

static void timed_graph_trim(const char *what)
{
    uint64_t start_ns = driver_now_ns();
    CUresult rc = call_cuDeviceGraphMemTrim(0);

    printf("  %s: trim %d, %.2f ms\n", what, rc, ms_since(start_ns));
    print_graphs("after");
}

static void graphs(void)
{
    uint64_t ns = SPIN_NS;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr block;

    printf("memory of a graph that takes and frees 1024 MiB around a kernel:\n");
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DRIVER_CHECK(driver.cuMemAllocAsync(&block, 1024 * MIB, stream));
    DRIVER_CHECK(driver.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&ns}, NULL));
    DRIVER_CHECK(driver.cuMemFreeAsync(block, stream));
    DRIVER_CHECK(driver.cuStreamEndCapture(stream, &graph));
    DRIVER_CHECK(driver.cuGraphInstantiateWithFlags(&exec, graph, 0));
    print_graphs("before the launch");
    DRIVER_CHECK(driver.cuGraphLaunch(exec, stream));
    print_graphs("while it runs");
    timed_graph_trim("while it runs");
    DRIVER_CHECK(driver.cuCtxSynchronize());
    print_graphs("after it");
    timed_graph_trim("after it");
    printf("  launched again: %d\n", driver.cuGraphLaunch(exec, stream));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    print_graphs("after it");
    size_t wanted = free_bytes() + 512 * MIB;
    printf("  cuMemAlloc of %zu MiB: %d\n", wanted / MIB, by_alloc(wanted));
    print_graphs("after");
    DRIVER_CHECK(driver.cuGraphExecDestroy(exec));
    DRIVER_CHECK(driver.cuGraphDestroy(graph));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(stream));
}

int main(void)
{
    CUmemoryPool own;
    CUmodule module;

    driver_start(0);
    find_functions();
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&spin, module, "spin"));
    DRIVER_CHECK(driver.cuDeviceGetDefaultMemPool(&standard, 0));
    printf("the first question about memory of graphs: free before %zu KiB", free_bytes() / 1024);
    call_cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &(cuuint64_t){0});
    printf(", after %zu KiB\n", free_bytes() / 1024);
    who_gets("the standard pool", standard, false);
    who_gets("the standard pool", standard, true);
    own = new_pool();
    who_gets("a created pool", own, false);
    trims();
    without_context();
    in_capture("global", CU_STREAM_CAPTURE_MODE_GLOBAL, false);
    in_capture("global", CU_STREAM_CAPTURE_MODE_GLOBAL, true);
    in_capture("thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true);
    in_capture("relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, true);
    graphs();
    DRIVER_CHECK(call_cuMemPoolDestroy(own));
    return 0;
}
