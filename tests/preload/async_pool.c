/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver's own pools (cuMemAllocAsync, graphs) keep idle memory too. What gives idle memory of
 * the library's pools back gives theirs back. Bare, the program trims them itself. */
#include "tests/preload/scene.h"

#include <sys/syscall.h>

static CUmemoryPool standard;

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t bytes = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, which, &bytes));
    return bytes;
}

static uint64_t idle_bytes(CUmemoryPool pool)
{
    return attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) -
           attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static CUmemoryPool make_pool(CUmemAllocationHandleType type)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = type,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool = NULL;
    REQUIRE(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* Leaves so many bytes idle in the pool. */
static void fill(CUmemoryPool pool, size_t size_bytes)
{
    cuuint64_t all = UINT64_MAX;
    CUdeviceptr block = 0;
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    REQUIRE(cuMemAllocFromPoolAsync(&block, size_bytes, pool, NULL));
    REQUIRE(cuMemFreeAsync(block, NULL));
    REQUIRE(cuCtxSynchronize());
}

static void start(void)
{
    CUdeviceptr block = 0;
    scene_start(1, 120);
    REQUIRE(cuDeviceGetDefaultMemPool(&standard, 0));
    REQUIRE(cuMemAllocAsync(&block, 4096, NULL));
    REQUIRE(cuMemFreeAsync(block, NULL));
    REQUIRE(cuCtxSynchronize());
}

/* By the environment, so that the memory is back when it returns. */
static void flush(const char *how)
{
    if (!scene_preloaded())
        return;
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", how, 1));
    TAKE_AND_GIVE(4096);
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
}

static void trim_bare(CUmemoryPool pool, size_t keep_bytes)
{
    if (!scene_preloaded())
        REQUIRE(cuMemPoolTrimTo(pool, keep_bytes));
}

/* ---- a flush trims the pools that the program has */

ACT(a_flush_trims_default_created_and_current_pools)
{
    start();
    CUmemoryPool created = make_pool(CU_MEM_HANDLE_TYPE_NONE);
    CUmemoryPool current = make_pool(CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr live = 0;
    REQUIRE(cuDeviceSetMemPool(0, current));
    REQUIRE(cuMemAllocFromPoolAsync(&live, 4 * MIB, created, NULL));
    for (int round = 0; round < 2; round++) {
        fill(standard, 64 * MIB);
        fill(created, 32 * MIB);
        fill(current, 16 * MIB);
        EXPECT(idle_bytes(standard) == 64 * MIB && idle_bytes(current) == 16 * MIB);
        if (round == 0) {
            flush("1");
        } else if (scene_preloaded()) {
            REQUIRE(raise(SIGUSR1));
            for (int i = 0;
                 i < 2000 && idle_bytes(standard) + idle_bytes(created) + idle_bytes(current) > 0;
                 i++)
                scene_sleep_ms(5);
        }
        trim_bare(standard, 0);
        trim_bare(created, 0);
        trim_bare(current, 0);
        printf("round %d: idle %d, %d, %d MiB\n", round, (int)(idle_bytes(standard) / MIB),
               (int)(idle_bytes(created) / MIB), (int)(idle_bytes(current) / MIB));
    }
    EXPECT(scene_wrong_words(live, 0, 0, NULL) == 0);
    REQUIRE(cuMemFreeAsync(live, NULL));
    REQUIRE(cuMemPoolDestroy(created));
    REQUIRE(cuMemPoolDestroy(current));
    flush("1");
    return 0;
}

/* The program has plain memory on the first device only, so no pool of ours is on the second one
 * for that reason. */
ACT(a_flush_trims_each_device)
{
    CUmemoryPool second = NULL;
    scene_start(2, 120);
    NEW_BLOCK(4096);
    REQUIRE(gpu_open(1));
    REQUIRE(cuDeviceGetDefaultMemPool(&second, 1));
    fill(second, 32 * MIB);
    REQUIRE(gpu_open(0));
    flush("1");
    trim_bare(second, 0);
    printf("idle %d MiB\n", (int)(idle_bytes(second) / MIB));
    return 0;
}

/* The simulated driver says so on stderr if it is trimmed. */
ACT(an_imported_pool_is_left_alone)
{
    start();
    CUmemoryPool exported = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), imported = NULL;
    int fd = -1;
    REQUIRE(cuMemPoolExportToShareableHandle(&fd, exported,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    fill(exported, 16 * MIB);
    int rc = cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    flush("1");
    trim_bare(exported, 0);
    printf("idle %d MiB\n", (int)(idle_bytes(exported) / MIB));
    if (rc == 0)
        REQUIRE(cuMemPoolDestroy(imported));
    return 0;
}

/* Ours first, then the default one, then those that the program has made. */
ACT(what_is_to_be_kept_is_kept_in_order)
{
    start();
    CUmemoryPool created = make_pool(CU_MEM_HANDLE_TYPE_NONE);
    TAKE_AND_GIVE(64 * MIB);
    fill(standard, 64 * MIB);
    fill(created, 64 * MIB);
    flush("keep=160M");
    trim_bare(created, 32 * MIB);
    uint64_t first = idle_bytes(standard), second = idle_bytes(created);
    printf("the default pool keeps %s, the other %s\n", first == 64 * MIB ? "all" : "less",
           second >= 16 * MIB && second <= 32 * MIB ? "some"
           : second > 0                             ? "all"
                                                    : "none");
    flush("1");
    trim_bare(standard, 0);
    trim_bare(created, 0);
    printf("idle %d, %d MiB\n", (int)(idle_bytes(standard) / MIB),
           (int)(idle_bytes(created) / MIB));
    return 0;
}

/* A trim waits for nothing: what is freed behind work stays until the work is done. */
ACT(a_flush_waits_for_no_work)
{
    CUdeviceptr block = 0;
    start();
    fill(standard, 32 * MIB);
    CUstream stream = NEW_STREAM(false);
    REQUIRE(cuMemAllocAsync(&block, 32 * MIB, stream));
    REQUIRE(gpu_spin(500 * MS_NS, stream));
    REQUIRE(cuMemFreeAsync(block, stream));
    flush("1");
    EXPECT(gpu_stream_query(stream) == CUDA_ERROR_NOT_READY);
    REQUIRE(gpu_sync());
    flush("1");
    trim_bare(standard, 0);
    printf("idle %d MiB\n", (int)(idle_bytes(standard) / MIB));
    return 0;
}

/* ---- pools end beside trims */

enum { ROUNDS = 60 };

static atomic_int makers;

static int make_and_destroy(int index, void *context)
{
    REQUIRE(gpu_open(0));
    for (int i = 0; i < ROUNDS; i++) {
        CUmemoryPool pool = make_pool(CU_MEM_HANDLE_TYPE_NONE);
        fill(pool, 4 * MIB);
        REQUIRE(cuMemPoolDestroy(pool));
    }
    atomic_fetch_sub(&makers, 1);
    return 0;
}

static int flush_beside(int index, void *context)
{
    if (index < 3)
        return make_and_destroy(index, context);
    REQUIRE(gpu_open(0));
    while (atomic_load(&makers) > 0)
        flush("1");
    return 0;
}

ACT(pools_are_destroyed_beside_flushes)
{
    start();
    atomic_store(&makers, 3);
    int wrong = scene_threads(4, flush_beside, NULL);
    fill(standard, 16 * MIB);
    flush("1");
    trim_bare(standard, 0);
    printf("%d wrong, idle %d MiB\n", wrong, (int)(idle_bytes(standard) / MIB));
    return wrong;
}

/* The simulated driver has these (tests/sim/sim.h), a real one does not. */
__attribute__((weak)) int simHold(const char *symbol);
__attribute__((weak)) void simLetGo(const char *symbol);
__attribute__((weak)) unsigned simHeld(void);

/* The trim of a flush is held until the thread that destroys its pool sleeps: either it waits for
 * the flush, or the pool is gone. */
static int destroy_beside_a_trim(int index, void *pool)
{
    static atomic_int destroyer;
    REQUIRE(gpu_open(0));
    if (index == 0) {
        flush("1");
    } else if (index == 1) {
        while (scene_preloaded() && simHeld() == 0)
            sched_yield();
        atomic_store(&destroyer, (int)syscall(SYS_gettid));
        REQUIRE(cuMemPoolDestroy(pool));
        while (simHeld() > 0)
            scene_sleep_ms(1);
    } else if (scene_preloaded()) {
        while (!atomic_load(&destroyer) || scene_thread_state(atomic_load(&destroyer)) != 'S')
            sched_yield();
        simLetGo("cuMemPoolTrimTo");
    }
    return 0;
}

ACT(a_pool_that_is_destroyed_is_trimmed_before)
{
    start();
    if (!scene_simulated())
        return SCENE_SKIP;
    CUmemoryPool pool = make_pool(CU_MEM_HANDLE_TYPE_NONE);
    fill(pool, 4 * MIB);
    REQUIRE(simHold("cuMemPoolTrimTo"));
    return scene_threads(3, destroy_beside_a_trim, pool);
}

/* The end of the primary context ends its device's pools, as far as the library knows. */
ACT(pools_end_with_their_context)
{
    CUcontext primary = NULL;
    start();
    make_pool(CU_MEM_HANDLE_TYPE_NONE);
    flush("1");
    REQUIRE(cuDevicePrimaryCtxReset(0));
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    fill(standard, 16 * MIB);
    flush("1");
    trim_bare(standard, 0);
    printf("idle %d MiB\n", (int)(idle_bytes(standard) / MIB));
    return 0;
}

/* A pool that is made while its context ends may end with it. The simulated driver says so on
 * stderr if it is used afterwards. */
static int make_beside_resets(int index, void *context)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUcontext primary = NULL;
    CUmemoryPool pool = NULL;
    REQUIRE(gpu_open(0));
    for (int i = 0; index < 3 && i < ROUNDS && atomic_load(&makers) > 0; i++)
        cuMemPoolCreate(&pool, &props);
    for (int i = 0; index == 3 && i < ROUNDS; i++) {
        REQUIRE(cuDevicePrimaryCtxReset(0));
        REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
        REQUIRE(cuCtxSetCurrent(primary));
        flush("1");
    }
    atomic_fetch_sub(&makers, index == 3);
    return 0;
}

ACT(pools_are_made_beside_resets)
{
    start();
    atomic_store(&makers, 1);
    return scene_threads(4, make_beside_resets, NULL);
}

/* ---- the first calls of a process come from several threads */

enum { FIRST_CALLS = 160 };

static atomic_bool asleep, through;

static void on_wake(int number)
{
    atomic_store(&asleep, true);
    scene_sleep_ms(3);
}

static void *call_first(void *to_begin)
{
    CUmemoryPool pool = NULL;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    atomic_store((atomic_bool *)to_begin, true);
    cuMemPoolCreate(&pool, &props);
    atomic_store(&through, true);
    return NULL;
}

/* A signal holds up one thread in its first call, a while after its begin. */
static void call_beside(unsigned after_us)
{
    struct timespec now, start;
    atomic_bool begun = false;
    REQUIRE(cuInit(0));
    REQUIRE(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_wake}, NULL));
    pthread_t first = NEW_THREAD(call_first, &begun);
    while (!atomic_load(&begun))
        continue;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000 + (now.tv_nsec - start.tv_nsec) / 1000 <
           (long)after_us);
    REQUIRE(pthread_kill(first, SIGUSR2));
    REQUIRE(pthread_detach(first));
    while (!atomic_load(&asleep) && !atomic_load(&through))
        continue;
    call_first(&begun);
    cuDevicePrimaryCtxRelease(0);
    _exit(0);
}

ACT(first_calls_come_from_two_threads)
{
    int ended = 0;
    for (unsigned i = 0; i < FIRST_CALLS; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0)
            call_beside(2 * i);
        REQUIRE(waitpid(child, &status, 0) != child);
        ended += status != 0;
    }
    printf("%d ended by a signal\n", ended);
    return ended;
}

/* ---- captures stay whole */

ACT(captures_stay_whole)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t idle = 0;
    start();
    size_t free_bytes = FREE_BYTES();
    idle = free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);
    fill(standard, idle);
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_spin(MS_NS, stream));
    flush("1"); /* comes after the capture */
    EXPECT(idle_bytes(standard) == idle);
    trim_bare(standard, 0);
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode));
    int rc = cuMemCreate(&handle, idle, &prop, 0);
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode));
    printf("physical memory in a capture: %d\n", rc);
    REQUIRE(cuMemRelease(handle));
    END_CAPTURE(stream);
    return 0;
}

/* ---- idle memory of one pool is there for every call */

ACT(idle_memory_serves_every_call)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr async = 0;
    uint64_t block = 0;
    start();
    CUmemoryPool other = make_pool(CU_MEM_HANDLE_TYPE_NONE);
    size_t free_bytes = FREE_BYTES();
    const size_t most = free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);

    fill(standard, most);
    if (scene_preloaded()) {
        size_t after = FREE_BYTES();
        EXPECT(after + 8 * MIB >= free_bytes);
    }
    trim_bare(standard, 0);
    int rc = gpu_malloc(&block, most);
    printf("memory of the pool: %d\n", rc);
    REQUIRE(gpu_free(block));

    fill(standard, most);
    trim_bare(standard, 0);
    rc = cuMemCreate(&handle, most, &prop, 0);
    printf("physical memory: %d\n", rc);
    REQUIRE(cuMemRelease(handle));

    fill(standard, most);
    trim_bare(standard, 0);
    fill(other, most);
    printf("another pool of the driver's: idle %d MiB in the first\n",
           (int)(idle_bytes(standard) / MIB));
    trim_bare(other, 0);
    rc = cuMemAllocAsync(&async, most, NULL);
    printf("the default one: %d\n", rc);
    return 0;
}

/* ---- limits and timers */

static void await_idle(CUmemoryPool pool, uint64_t most)
{
    trim_bare(pool, most);
    for (int i = 0; i < 2000 && idle_bytes(pool) > most; i++)
        scene_sleep_ms(5);
}

/* So much may stay idle with the option, which is in force from the start. */
static int play_limit(const char *option, const char *value, uint64_t most)
{
    if (scene_preloaded())
        REQUIRE(setenv(option, value, 1));
    start();
    fill(standard, 64 * MIB);
    await_idle(standard, most);
    printf("idle %d MiB\n", (int)(idle_bytes(standard) / MIB));
    return 0;
}

ACT(limits_count_it)
{
    return play_limit("GPUCACHE_MAX_IDLE", "8M", 8 * MIB);
}

/* No device has so much, so all that is idle is missing. A warning says that. */
ACT(what_is_missing_of_free_memory_goes)
{
    REQUIRE(setenv("GPUCACHE_LOG", "error", 1));
    return play_limit("GPUCACHE_MIN_FREE", "1024G", 0);
}

ACT(what_is_idle_for_long_goes)
{
    return play_limit("GPUCACHE_IDLE_TIMEOUT", "200ms", 0);
}

/* ---- graphs: what they keep is simulated alone */

ACT(graphs_give_back_what_they_keep)
{
    cuuint64_t bytes = 0;
    start();
    if (!scene_simulated())
        return SCENE_SKIP;
    REQUIRE(SIM(simGraphMemory)(0, 32 * MIB));
    flush("1");
    if (!scene_preloaded())
        REQUIRE(cuDeviceGraphMemTrim(0));
    REQUIRE(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
    printf("graphs keep %d MiB\n", (int)(bytes / MIB));
    return 0;
}
