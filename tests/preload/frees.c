/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory goes back to the driver beside calls that may end its context, and do not. */
#include "tests/preload/scene.h"

static CUcontext context;
static atomic_bool over;

static void retain_once_more(void)
{
    CUcontext same = NULL;
    context = CURRENT_CONTEXT();
    REQUIRE(cuDevicePrimaryCtxRetain(&same, 0));
}

/* An array takes memory past the pool. */
static int take_array(CUarray *array)
{
    const CUDA_ARRAY_DESCRIPTOR four_gib = {
        .Width = 16384, .Height = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    return (int)cuArrayCreate(array, &four_gib);
}

/* Threads retain and release over and over. What another one frees is there for an array at once.
 * Each release takes a while. */

enum { RELEASING = 8, TURNS = 600, TURNS_REAL = 20, LATE_MS = 500 };

static int release_or_free(int index, void *block_bytes)
{
    int failed = 0;
    while (index > 0 && !atomic_load(&over)) {
        CUcontext same = NULL;
        failed += cuDevicePrimaryCtxRetain(&same, 0) != CUDA_SUCCESS ||
                  cuDevicePrimaryCtxRelease(0) != CUDA_SUCCESS;
    }
    if (index > 0)
        return failed;
    REQUIRE(cuCtxSetCurrent(context));
    for (int left = scene_simulated() ? TURNS : TURNS_REAL; left > 0 && !failed; left--) {
        uint64_t begin_ns = scene_now_ns();
        CUarray array;
        TAKE_AND_GIVE(*(size_t *)block_bytes);
        failed += take_array(&array) != 0 || cuArrayDestroy(array) != CUDA_SUCCESS;
        failed += scene_simulated() && scene_now_ns() - begin_ns > LATE_MS * MS_NS;
    }
    atomic_store(&over, true);
    return failed;
}

ACT(frees_begin_beside_many_releases)
{
    scene_cost("cuDevicePrimaryCtxRelease_v2", "200000");
    scene_start(1, 120);
    retain_once_more();
    size_t free_bytes = FREE_BYTES(), block_bytes = free_bytes / 8 * 7;
    int failed = scene_threads(1 + RELEASING, release_or_free, &block_bytes);
    printf("%d failed, memory is %s\n", failed,
           FREE_BYTES() + 64 * MIB < free_bytes ? "lost" : "all there");
    return failed;
}

/* A signal handler takes an array while its own thread is in a release, which is not the last. */

static int handlers_code;

static void take_in_handler(int number)
{
    CUarray array;
    handlers_code = take_array(&array);
}

static void *signal_the_releaser(void *thread)
{
    scene_await_held(1);
    REQUIRE(pthread_kill(*(pthread_t *)thread, SIGUSR2));
    scene_sleep_ms(300);
    SIM(simLetGo)("cuDevicePrimaryCtxRelease_v2");
    return NULL;
}

ACT(a_handler_in_a_release_gets_idle_memory)
{
    uint64_t begin_ns;
    pthread_t self = pthread_self();
    scene_start(1, 60);
    if (!scene_simulated() || scene_sanitized()) /* a real driver may hold locks there */
        return SCENE_SKIP;
    retain_once_more();
    TAKE_AND_GIVE(FREE_BYTES() / 8 * 7);
    EXPECT(signal(SIGUSR2, take_in_handler) != SIG_ERR);
    REQUIRE(SIM(simHold)("cuDevicePrimaryCtxRelease_v2"));
    pthread_t signaller = NEW_THREAD(signal_the_releaser, &self);
    begin_ns = scene_now_ns();
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    bool late = scene_now_ns() - begin_ns > 2000 * MS_NS;
    REQUIRE(pthread_join(signaller, NULL));
    printf("%d %s\n", handlers_code, late ? "late" : "in time");
    return late || handlers_code;
}

/* A free of memory that another process may know waits for all work. A release that is not the last
 * does not wait for it. */

static uint64_t shared;

static void *free_shared(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(gpu_free(shared));
    return NULL;
}

ACT(a_release_does_not_wait_for_work)
{
    CUipcMemHandle handle;
    scene_start(1, 60);
    retain_once_more();
    CUstream stream = NEW_STREAM(false);
    shared = NEW_BLOCK(64 * MIB);
    if (gpu_ipc_export(&handle, shared) != 0)
        scene_skip("no IPC");
    uint32_t *word = scene_hold(stream);
    pthread_t thread = NEW_THREAD(free_shared, NULL);
    scene_sleep_ms(100);
    uint64_t begin_ns = scene_now_ns();
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    bool late = scene_now_ns() - begin_ns > LATE_MS * MS_NS;
    scene_let_go(word);
    REQUIRE(pthread_join(thread, NULL));
    puts(late ? "late" : "in time");
    return late;
}

/* Each free waits for all work (GPUCACHE_SYNC_FREE), though no event can be made by then. */

enum { FREEING = 4 };

static uint64_t blocks[FREEING];
static atomic_int num_back;

static void *free_one(void *block)
{
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(gpu_free(*(uint64_t *)block));
    atomic_fetch_add(&num_back, 1);
    return NULL;
}

ACT(frees_wait_for_work_without_events)
{
    pthread_t threads[FREEING];
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_SYNC_FREE", "on", 1));
    scene_start(1, 60);
    context = CURRENT_CONTEXT();
    CUstream held = NEW_STREAM(false), other = NEW_STREAM(false);
    NEW_BLOCKS(blocks, FREEING, 4 * MIB);
    if (scene_simulated())
        REQUIRE(SIM(simFailSpec)("cuEventCreate:1+:2"));
    REQUIRE(gpu_spin(1000, other));
    uint32_t *word = scene_hold(held);
    for (int i = 0; i < FREEING; i++) {
        threads[i] = NEW_THREAD(free_one, &blocks[i]);
        scene_sleep_ms(50);
        /* On a real driver a bare free that waits holds up other threads' launches (580.159). */
        if (scene_simulated() || scene_preloaded())
            REQUIRE(gpu_spin(1000, other));
    }
    int early = atomic_load(&num_back);
    scene_let_go(word);
    for (int i = 0; i < FREEING; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("%d frees did not wait\n", early);
    return early;
}

ACT(each_free_waits_where_events_run_out)
{
    int early = 0;
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_SYNC_FREE", "on", 1));
    REQUIRE(setenv("SIM_FAIL", "cuEventCreate:2+:2", 1));
    scene_start(1, 60);
    context = CURRENT_CONTEXT();
    CUstream streams[] = {NEW_STREAM(false), NEW_STREAM(false)};
    NEW_BLOCKS(blocks, FREEING, 4 * MIB);
    for (int i = 0; i < FREEING; i++) {
        uint32_t *word = scene_hold(streams[i & 1]);
        pthread_t thread = NEW_THREAD(free_one, &blocks[i]);
        scene_sleep_ms(100);
        early += atomic_load(&num_back) > i;
        scene_let_go(word);
        REQUIRE(pthread_join(thread, NULL));
    }
    printf("%d frees did not wait\n", early);
    return early;
}

/* Another thread has an event in the making, or the record of the fence under way. */
ACT(frees_wait_beside_each_others_records)
{
    pthread_t threads[FREEING];
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_SYNC_FREE", "on", 1));
    scene_start(1, 60);
    bool holds = scene_simulated() && scene_preloaded();
    context = CURRENT_CONTEXT();
    CUstream held = NEW_STREAM(false);
    NEW_BLOCKS(blocks, FREEING, 4 * MIB);
    uint32_t *word = scene_hold(held);
    for (int i = 2; i < FREEING; i++) {
        threads[i] = NEW_THREAD(free_one, &blocks[i]);
        scene_sleep_ms(50); /* they take the events that there are */
    }
    if (holds)
        REQUIRE(SIM(simHold)("cuEventCreate"));
    for (int i = 0; i < 2; i++)
        threads[i] = NEW_THREAD(free_one, &blocks[i]);
    if (holds) {
        scene_await_held(2);
        REQUIRE(SIM(simHold)("cuCtxRecordEvent"));
        SIM(simLetGo)("cuEventCreate");
    }
    scene_sleep_ms(300);
    int early = atomic_load(&num_back);
    if (holds)
        SIM(simLetGo)("cuCtxRecordEvent");
    scene_let_go(word);
    for (int i = 0; i < FREEING; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("%d frees did not wait\n", early);
    return early;
}

/* It does not where the driver takes no more calls, or the thread's own capture is in the way. */

ACT(a_free_in_a_capture_without_events_ends)
{
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_SYNC_FREE", "on", 1));
    REQUIRE(setenv("SIM_FAIL", "cuEventCreate:1+:2", 1));
    scene_start(1, 60);
    if (!scene_simulated())
        return SCENE_SKIP;
    CUstream captures = NEW_STREAM(false), other = NEW_STREAM(false);
    NEW_BLOCKS(blocks, 2, 4 * MIB);
    REQUIRE(gpu_spin(1000, other));
    REQUIRE(cuStreamBeginCapture(captures, CU_STREAM_CAPTURE_MODE_RELAXED));
    FREE_ALL(blocks, 2);
    puts("they end");
    return 0;
}

static bool frees_last;

/* The driver's own handlers of the exit are over by then. */
static __attribute__((destructor)) void free_last(void)
{
    if (frees_last)
        gpu_free(blocks[1]);
}

ACT(a_free_at_exit_beside_one_that_waits_ends)
{
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_SYNC_FREE", "on", 1));
    scene_start(1, 60);
    if (!scene_simulated())
        return SCENE_SKIP;
    scene_leave();
    frees_last = true;
    context = CURRENT_CONTEXT();
    NEW_BLOCKS(blocks, 2, 4 * MIB);
    scene_hold(NEW_STREAM(false));
    NEW_THREAD(free_one, &blocks[0]);
    scene_sleep_ms(100);
    fflush(stdout);
    return 0;
}

/* A signal handler in a release of one device takes memory of another device, whose context ends in
 * another thread. No free begins beside that end. */

static atomic_bool handled;

static void take_elsewhere(int number)
{
    CUarray array;
    handlers_code = (int)cuCtxSetCurrent(context);
    if (!handlers_code)
        handlers_code = take_array(&array);
    atomic_store(&handled, true);
}

static void *release(void *device)
{
    cuDevicePrimaryCtxRelease(*(const int *)device);
    return NULL;
}

ACT(a_handler_in_a_release_frees_beside_no_other_end)
{
    static const int devices[] = {0, 1};
    CUcontext second = NULL;
    pthread_t threads[2];
    scene_start(2, 60);
    if (!scene_simulated() || scene_sanitized())
        return SCENE_SKIP;
    context = CURRENT_CONTEXT();
    for (int i = 0; i < 2; i++)
        REQUIRE(cuDevicePrimaryCtxRetain(&second, 1));
    TAKE_AND_GIVE(FREE_BYTES() / 8 * 7);
    EXPECT(signal(SIGUSR2, take_elsewhere) != SIG_ERR);
    REQUIRE(SIM(simHold)("cuDevicePrimaryCtxRelease_v2"));
    for (int i = 0; i < 2; i++) {
        threads[i] = NEW_THREAD(release, (void *)(uintptr_t)&devices[i]);
        scene_await_held((unsigned)i + 1);
    }
    REQUIRE(SIM(simHold)("cuMemFreeAsync"));
    REQUIRE(pthread_kill(threads[1], SIGUSR2));
    scene_sleep_ms(500);
    bool frees = SIM(simHeld)() > 2;
    SIM(simLetGo)("cuDevicePrimaryCtxRelease_v2");
    SIM(simLetGo)("cuMemFreeAsync");
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("a free beside the end: %d, handled: %d\n", frees, atomic_load(&handled));
    return frees;
}

/* Idle segments are to go back while a call of another thread may end their context, and does. No
 * free begins beside it. */

static void start_with_segments(int count)
{
    if (scene_preloaded())
        REQUIRE(setenv("GPUCACHE_BACKING", "segment", 1));
    scene_start(count, 60);
    if (!scene_simulated())
        scene_skip("calls are held in the simulated driver only");
    context = CURRENT_CONTEXT();
}

static void *reset(void *device)
{
    cuDevicePrimaryCtxReset(*(const int *)device);
    return NULL;
}

static void *destroy(void *unused)
{
    printf("destroyed: %d\n", (int)cuCtxDestroy(context));
    return NULL;
}

/* The call is held in the driver. Then num_held calls are. */
static pthread_t hold_in(const char *symbol, void *(*call)(void *), unsigned num_held)
{
    static int first_device;
    REQUIRE(SIM(simHold)(symbol));
    pthread_t thread = NEW_THREAD(call, &first_device);
    scene_await_held(num_held);
    return thread;
}

/* One call that may end the context is held. */
static int flush_beside(const char *symbol, pthread_t ender)
{
    REQUIRE(SIM(simHold)("cuMemFreeAsync"));
    REQUIRE(SIM(simHold)("cuMemFree_v2"));
    if (scene_preloaded())
        REQUIRE(kill(getpid(), SIGUSR1));
    scene_sleep_ms(500);
    int frees = (int)SIM(simHeld)() - 1;
    SIM(simLetGo)(symbol);
    REQUIRE(pthread_join(ender, NULL));
    SIM(simLetGo)("cuMemFreeAsync");
    SIM(simLetGo)("cuMemFree_v2");
    printf("%d frees beside the end\n", frees);
    return frees;
}

static CUresult release_by_another_name(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(driver != NULL);
    void *of_old = dlsym(driver, "cuDevicePrimaryCtxRelease");
    EXPECT(of_old != NULL);
    return ((CUresult (*)(CUdevice))(uintptr_t)of_old)(0);
}

/* The first allocation of a context comes while a release is under way, which is the last one. */
ACT(a_release_is_heeded_by_a_context_that_allocates_first_then)
{
    static const char *const held = "cuDevicePrimaryCtxRelease_v2";
    start_with_segments(1);
    retain_once_more();
    pthread_t ender = hold_in(held, release, 1);
    TAKE_AND_GIVE(64 * MIB);
    REQUIRE(release_by_another_name());
    return flush_beside(held, ender);
}

/* A destruction of the primary context is under way, which the driver refuses then. */
static int beside_a_refused_destruction(const char *symbol, void *(*how)(void *))
{
    start_with_segments(1);
    TAKE_AND_GIVE(64 * MIB);
    pthread_t refused = hold_in("cuCtxDestroy_v2", destroy, 1);
    pthread_t ender = hold_in(symbol, how, 2);
    SIM(simLetGo)("cuCtxDestroy_v2");
    REQUIRE(pthread_join(refused, NULL));
    return flush_beside(symbol, ender);
}

ACT_IS(ACT(a_reset_is_heeded_beside_a_refused_destruction),
       beside_a_refused_destruction("cuDevicePrimaryCtxReset_v2", reset))
ACT_IS(ACT(a_release_is_heeded_beside_a_refused_destruction),
       beside_a_refused_destruction("cuDevicePrimaryCtxRelease_v2", release))
