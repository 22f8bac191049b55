/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process has left the device as a whole, by the driver's checkpoint. Any call that reaches the
 * driver then ends it (SIM_CHECKPOINTED=abort). Whatever the program calls, it finds all as it was.
 */
#include "tests/preload/park.h"

#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 256 * 1024, BYTES = 4 * WORDS, VALUE = 0x1234567, CALLERS = 10 };
enum { MOST = 200, FREQUENT = 10 };

static uint64_t a, b; /* a has VALUE */
static uint32_t *here;
static CUstream stream;
static CUevent event;

/* What tests/sim/sim.h has, in a driver that need not be the program's. */
static void *sim_function(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = driver ? dlsym(driver, name) : NULL;
    EXPECT(found);
    return found;
}

static int begin(void)
{
    scene_start(1, 300);
    if (!scene_simulated())
        return SCENE_SKIP;
    stream = NEW_STREAM(false);
    a = NEW_BLOCK(BYTES);
    b = NEW_BLOCK(BYTES);
    here = calloc(WORDS, 4);
    REQUIRE(gpu_event_create(&event));
    REQUIRE(gpu_fill(a, WORDS, VALUE, NULL));
    REQUIRE(gpu_fill(b, WORDS, 7, NULL));
    REQUIRE(gpu_event_record(event, stream));
    REQUIRE(gpu_sync());
    return 0;
}

static bool is_whole(void)
{
    return asker_ask("look") != -1 && strstr(asker_body(), "\"whole\":true");
}

static void leave(void)
{
    park_as("park wait=2000 whole=1", PAGE_REPLY_DONE);
    EXPECT(!asker_page() || is_whole());
}

static uint32_t wrong_a(void)
{
    return scene_wrong_words(a, WORDS, VALUE, stream);
}

/* ---- Calls */

static int free_memory(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    return gpu_mem_info(&free_bytes, &total_bytes) || !free_bytes;
}

static int event_record(void)
{
    return gpu_event_record(event, stream) || gpu_event_sync(event);
}

static int stream_wait(void)
{
    return gpu_stream_wait(stream, event);
}

static int new_event(void)
{
    CUevent other;
    return gpu_event_create(&other) || gpu_event_record(other, stream) || gpu_event_destroy(other);
}

static int new_stream(void)
{
    CUstream other;
    return gpu_stream_create(&other, false) || gpu_fill(b, WORDS, 7, other) ||
           gpu_stream_sync(other) || gpu_stream_destroy(other);
}

static int host_memory(void)
{
    void *host = NULL;
    return gpu_host_alloc(&host, MIB) || gpu_host_free(host);
}

static int large_block(void)
{
    uint64_t block = 0;
    return gpu_malloc(&block, 300 * MIB) || gpu_memset(block, 1, 300 * MIB) || gpu_free(block);
}

static int small_blocks(void)
{
    uint64_t blocks[8];
    NEW_BLOCKS(blocks, 8, 4096);
    FREE_ALL(blocks, 8);
    return 0;
}

static int question_about_host_memory(void)
{
    bool is_device = true;
    int device;
    (void)gpu_pointer_is_device(&is_device, &device, (uint64_t)(uintptr_t)here);
    return is_device;
}

static int question_about_a_block(void)
{
    bool is_device = false;
    int device;
    return gpu_pointer_is_device(&is_device, &device, a) || !is_device;
}

static int capture(void)
{
    CUgraph graph;
    CUgraphExec exec;
    return gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ||
           gpu_copy(b, a, WORDS, stream) || gpu_capture_end(stream, &graph) ||
           gpu_graph_instantiate(&exec, graph) || gpu_graph_launch(exec, stream) ||
           gpu_stream_sync(stream) || scene_wrong_words(b, WORDS, VALUE, NULL) ||
           gpu_graph_destroy(graph, exec);
}

static int choice_of_a_device(void)
{
    return gpu_open(0);
}

static int device_memory_copy(void)
{
    return gpu_get(here, a, BYTES) || here[0] != VALUE || here[WORDS - 1] != VALUE;
}

static int kernel(void)
{
    return gpu_copy(b, a, WORDS, stream) || scene_wrong_words(b, WORDS, VALUE, stream);
}

static int last_error(void)
{
    return gpu_last_error();
}

static const struct {
    const char *name;
    int (*call)(void);
} calls[] = {
#define USE(function) {#function, function}
    USE(free_memory),
    USE(event_record),
    USE(stream_wait),
    USE(new_event),
    USE(new_stream),
    USE(host_memory),
    USE(large_block),
    USE(small_blocks),
    USE(question_about_host_memory),
    USE(capture),
    USE(kernel),
    USE(question_about_a_block),
    USE(choice_of_a_device),
    USE(last_error),
    USE(device_memory_copy),
};
enum { CALLS = sizeof calls / sizeof calls[0] };

ACT(each_call_is_as_without)
{
    int failures = 0;
    if (begin())
        return SCENE_SKIP;
    for (size_t i = 0; i < CALLS; i++) {
        leave();
        int failed = calls[i].call();
        uint32_t wrong = wrong_a();
        if (failed || wrong || (asker_page() && is_whole()))
            printf("%s: %d, %u wrong words\n", calls[i].name, failed, wrong);
        failures += failed || wrong != 0;
    }
    return failures;
}

ACT(a_watchdog_is_answered)
{
    int failures = 0;
    if (begin())
        return SCENE_SKIP;
    leave();
    for (int i = 0; i < 100; i++)
        failures += gpu_event_query(event) || gpu_stream_query(stream) || gpu_event_sync(event) ||
                    gpu_stream_sync(stream) || gpu_sync();
    EXPECT(!asker_page() || gpu_is_runtime || is_whole()); /* a runtime calls more */
    return failures + (wrong_a() != 0);
}

/* ---- Threads */

static pthread_barrier_t together;

static int call_in_thread(int index, void *unused)
{
    (void)unused;
    REQUIRE(gpu_open(0));
    for (int round = 0; round < 5; round++) {
        pthread_barrier_wait(&together); /* the process leaves */
        pthread_barrier_wait(&together);
        int failed = index % 2 ? gpu_get(&(uint32_t){0}, a, 4) : free_memory() || small_blocks();
        if (failed)
            return failed;
    }
    return 0;
}

static void *leave_each_time(void *unused)
{
    for (int round = 0; round < 5; round++) {
        pthread_barrier_wait(&together);
        leave();
        pthread_barrier_wait(&together);
    }
    return unused;
}

ACT(threads_wake_it_together)
{
    pthread_t leaver;
    if (begin())
        return SCENE_SKIP;
    REQUIRE(pthread_barrier_init(&together, NULL, CALLERS + 1));
    REQUIRE(pthread_create(&leaver, NULL, leave_each_time, NULL));
    int failures = scene_threads(CALLERS, call_in_thread, NULL);
    REQUIRE(pthread_join(leaver, NULL));
    return failures + (wrong_a() != 0);
}

static _Atomic bool ends;

/* Calls that are no uses, and frees and allocations, without a rest. */
static int call_all_the_time(int index, void *unused)
{
    (void)unused;
    REQUIRE(gpu_open(0));
    for (unsigned i = 0; !ends; i++) {
        int failed = index % 2 ? event_record() : small_blocks();
        if (failed)
            return failed;
        if (i % 64 == 0)
            scene_sleep_ms(5);
    }
    return 0;
}

static void *leave_often(void *unused)
{
    for (int i = 0; i < 30; i++) {
        asker_ask("park wait=100 frameworks=0 whole=1");
        scene_sleep_ms(3);
    }
    ends = true;
    return unused;
}

/* A real driver takes half a second from the lock until nothing is left to call. On a busy machine
 * a thread rests for more than the 20 ms of shim/driver/closed.h, step 3. */
ACT(calls_come_at_every_moment)
{
    pthread_t leaver;
    scene_cost("cuCheckpointProcessLock", "100000000");
    if (begin())
        return SCENE_SKIP;
    REQUIRE(pthread_create(&leaver, NULL, leave_often, NULL));
    int failures = scene_threads(4, call_all_the_time, NULL);
    REQUIRE(pthread_join(leaver, NULL));
    return failures + (wrong_a() != 0);
}

static volatile sig_atomic_t handled, handlers_failures;

static void call_in_handler(int signal_number)
{
    int saved_errno = errno;
    (void)signal_number;
    handlers_failures += gpu_event_record(event, stream) != 0;
    handled++;
    errno = saved_errno;
}

static void *signal_it(void *thread)
{
    scene_sleep_ms(20);
    REQUIRE(pthread_kill(*(pthread_t *)thread, SIGUSR2));
    return NULL;
}

/* A handler calls the driver inside a call that waits, or beside it. */
ACT(a_handler_calls_meanwhile)
{
    pthread_t self = pthread_self(), other;
    if (scene_sanitized() || begin()) /* the simulated driver allocates memory there */
        return SCENE_SKIP;
    EXPECT(signal(SIGUSR2, call_in_handler) != SIG_ERR);
    for (int i = 1; i <= 5; i++) {
        leave();
        REQUIRE(pthread_create(&other, NULL, signal_it, &self));
        REQUIRE(gpu_fill(b, WORDS, 7, stream));
        while (handled < i)
            scene_sleep_ms(1);
        REQUIRE(pthread_join(other, NULL));
    }
    return handlers_failures + (wrong_a() != 0);
}

/* ---- The process */

/* A child cannot use the GPU, whatever its parent does. */
ACT(a_child_is_as_without)
{
    uint64_t block;
    if (begin())
        return SCENE_SKIP;
    leave();
    pid_t child = scene_fork();
    if (!child) {
        int rc = gpu_malloc(&block, MIB), synced = gpu_sync(),
            recorded = gpu_event_record(event, 0);
        _exit(rc && synced && recorded ? 0 : 1);
    }
    printf("the child: %d\n", scene_wait(child));
    EXPECT(!asker_page() || is_whole());
    child = scene_fork();
    if (!child)
        exit(0);
    printf("another: %d\n", scene_wait(child));
    EXPECT(!asker_page() || is_whole());
    return wrong_a() != 0;
}

static void take_result(void)
{
    if (gpu_get(here, a, BYTES) || here[0] != VALUE || here[WORDS - 1] != VALUE)
        _exit(1);
}

ACT(a_result_is_there_at_exit)
{
    if (begin())
        return SCENE_SKIP;
    REQUIRE(atexit(take_result));
    leave();
    return 0;
}

ACT(an_exit_needs_nothing)
{
    if (begin())
        return SCENE_SKIP;
    leave();
    return 0;
}

ACT(a_reset_wakes_it)
{
    if (begin())
        return SCENE_SKIP;
    for (int i = 0; i < 2; i++) {
        leave();
        REQUIRE(gpu_reset());
        REQUIRE(gpu_open(0));
        stream = NEW_STREAM(false);
        a = NEW_BLOCK(BYTES);
        REQUIRE(gpu_fill(a, WORDS, VALUE, NULL));
        REQUIRE(gpu_sync());
    }
    leave();
    return wrong_a() != 0;
}

/* ---- Faults */

/* What the library calls for it, and the program's call that wakes it does not. */
static const char *const steps[] = {
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
    "cuCheckpointProcessGetState",
    "cuDeviceGetCount",
    "cuDeviceGetUuid_v2",
    "cuMemHostUnregister",
    "cuMemHostRegister_v2",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemcpyHtoDAsync_v2",
    "cuCtxRecordEvent",
    "cuStreamCreate",
    "cuThreadExchangeStreamCaptureMode",
};

/* Those that the program calls, too: a request wakes it, so that they fail in the library alone. */
static const char *const shared_steps[] = {
    "cuCtxGetApiVersion",         "cuCtxGetCurrent",      "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",         "cuDeviceGetAttribute", "cuDeviceGetUuid",
    "cuDevicePrimaryCtxGetState", "cuEventQuery",         "cuMemcpyDtoHAsync_v2",
    "cuStreamDestroy_v2",         "cuStreamSynchronize",
};

__attribute__((format(printf, 1, 2))) static void fail_from(const char *spec, ...)
{
    int (*fail)(const char *);
    *(void **)&fail = sim_function("simFailSpec");
    char text[100];
    va_list arguments;
    va_start(arguments, spec);
    vsnprintf(text, sizeof text, spec, arguments);
    va_end(arguments);
    REQUIRE(fail(text));
}

/* The nth call of a step fails, on the way out or back. False: there are fewer calls. */
static bool walk(const char *symbol, unsigned nth, int code, bool by_request)
{
    uint64_t (*count)(const char *);
    void (*clear)(const char *);
    *(void **)&count = sim_function("simCallCount");
    *(void **)&clear = sim_function("simFailClear");
    uint64_t before = count(symbol);
    fail_from("%s:%u:%d", symbol, nth, code);
    int left = asker_ask("park wait=2000 whole=1");
    if (by_request)
        asker_ask("wake");
    int rc = by_request ? 0 : gpu_event_record(event, stream);
    uint64_t made = count(symbol) - before;
    clear(NULL);
    rc = rc ? rc : gpu_event_record(event, stream);
    int wrong = rc ? 0 : wrong_a() != 0;
    if (rc || wrong || is_whole() || left == PAGE_REPLY_BAD) {
        printf("%s, call %u, %d: %d, the call %d, wrong: %d: %s\n", symbol, nth, code, left, rc,
               wrong, asker_reply());
        exit(1);
    }
    return made >= nth;
}

/* The mode of captures is changed more than forty times, each like the others, and their walk would
 * take a quarter of the time: the first ones do. In a program of the runtime nothing asks for the
 * state of the primary context. */
static void walk_all(const char *const *symbols, size_t number, bool by_request)
{
    for (size_t i = 0; i < number; i++)
        for (int code = 1; code <= 2; code++) {
            bool frequent = !strcmp(symbols[i], "cuThreadExchangeStreamCaptureMode");
            unsigned nth = 1;
            while ((!frequent || nth < FREQUENT) && walk(symbols[i], nth, code, by_request))
                EXPECT(nth++ < MOST);
            bool may_lack = gpu_is_runtime && !strcmp(symbols[i], "cuDevicePrimaryCtxGetState");
            if (nth == 1 && !may_lack)
                printf("%s is not called\n", symbols[i]);
            EXPECT(nth > 1 || may_lack);
        }
}

ACT(each_step_may_fail_once)
{
    if (begin())
        return SCENE_SKIP;
    if (!asker_page())
        return 0;
    leave();
    REQUIRE(gpu_event_record(event, stream));
    walk_all(steps, sizeof steps / sizeof steps[0], false);
    walk_all(shared_steps, sizeof shared_steps / sizeof shared_steps[0], true);
    return wrong_a() != 0;
}
