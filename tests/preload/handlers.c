/* SPDX-License-Identifier: BSD-2-Clause */
/* A signal handler calls the driver in a thread that is inside a call of the driver. Bare, it comes
 * before that call, because the simulated driver bears no handler in the midst of its own work. */
#include "tests/preload/scene.h"

static CUcontext full;
static const char *held_call; /* where the thread is stopped, of calls that the library makes */
static atomic_bool handled;
static atomic_int handler_rc;

static void *signal_inside(void *thread)
{
    scene_await_held(1);
    if (!scene_handles(*(pthread_t *)thread, SIGUSR2, &handled))
        printf("the handler is stuck\n");
    SIM(simLetGo)(held_call);
    return NULL;
}

static int call_malloc(void)
{
    uint64_t block = 0;
    return gpu_malloc(&block, 64 * MIB);
}

static int call_enable(void)
{
    return gpu_peer_enable(1);
}

/* Makes the call. The handler comes while the library is in its own call `at`. */
static int with_handler(int (*call)(void), const char *at, void (*handler)(int number))
{
    pthread_t self = pthread_self(), signaller;
    EXPECT(signal(SIGUSR2, handler) != SIG_ERR);
    if (!scene_preloaded()) {
        REQUIRE(raise(SIGUSR2));
        return call();
    }
    held_call = at;
    REQUIRE(SIM(simHold)(at));
    signaller = NEW_THREAD(signal_inside, &self);
    int rc = call();
    REQUIRE(pthread_join(signaller, NULL));
    return rc;
}

static void reset(int number)
{
    atomic_store(&handler_rc, (int)cuDevicePrimaryCtxReset(0));
    atomic_store(&handled, true);
}

/* The memory that the thread was asking for is not lost: the next context gives it back. */
ACT(reset_inside)
{
    scene_start(1, 60);
    if (!scene_simulated())
        return SCENE_SKIP;
    size_t before = FREE_BYTES();
    NEW_BLOCK(8 * MIB);
    with_handler(call_malloc, "cuMemCreate", reset);
    printf("reset: %d\n", atomic_load(&handler_rc));
    REQUIRE(cuDevicePrimaryCtxReset(0));
    REQUIRE(gpu_open(0));
    TAKE_AND_GIVE(4 * KIB);
    size_t after = FREE_BYTES();
    printf("%s\n", after + 32 * MIB < before ? "memory is lost" : "all is there");
    return after + 32 * MIB < before;
}

static void ask_too_much(int number)
{
    CUdeviceptr block = 0;
    CUcontext last;
    REQUIRE(cuCtxPushCurrent(full));
    atomic_store(&handler_rc, (int)cuMemAlloc(&block, 700 * MIB));
    REQUIRE(cuCtxPopCurrent(&last));
    atomic_store(&handled, true);
}

/* The thread gives access to all memory of a device, which has too little for the handler. */
ACT(full_inside)
{
    scene_start_peers(60);
    if (!scene_simulated())
        return SCENE_SKIP;
    REQUIRE(gpu_open(1));
    NEW_BLOCK(1500 * MIB);
    full = CURRENT_CONTEXT();
    REQUIRE(gpu_open(0));
    NEW_BLOCK(4 * KIB);
    int rc = with_handler(call_enable, "cuMemSetAccess", ask_too_much);
    printf("enable: %d, request: %d\n", rc, atomic_load(&handler_rc));
    return rc;
}
