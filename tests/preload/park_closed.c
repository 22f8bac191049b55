/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process leaves the device as a whole, and comes back, while threads of it wait until the
 * driver is open again. Nobody waits long for such a thread, and none of them takes device memory
 * that the wake needs.
 */
#include "tests/preload/park_world.h"

/* The library waits 10 s at most for the work of other threads on a pool. */
enum { LONG_MS = 5000 };

static int begin_alone(int devices)
{
    begin(devices);
    return scene_simulated() ? 0 : SCENE_SKIP;
}

static void *take(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    (void)NEW_BLOCK(64 * MIB);
    return unused;
}

static void *leave(void *unused)
{
    (void)asker_ask("park wait=2000 frameworks=0 whole=1");
    return unused;
}

static pthread_t taker, leaver;

/* An allocation is in the first of its calls, and the process is about to close the driver. */
static void begin_to_leave(void)
{
    REQUIRE(SIM(simHold)("cuMemCreate"));
    REQUIRE(SIM(simHold)("cuMemHostUnregister"));
    taker = NEW_THREAD(take, NULL);
    scene_await_held(1);
    leaver = NEW_THREAD(leave, NULL);
    scene_await_held(2);
}

/* The call returns once the driver is closed, so that the allocation waits in front of its second
 * one, and wakes the process. Does all take long from then on? */
static bool goes_on_late(void)
{
    SIM(simLetGo)("cuMemHostUnregister");
    scene_sleep_ms(10);
    uint64_t start_ns = scene_now_ns();
    SIM(simLetGo)("cuMemCreate");
    REQUIRE(pthread_join(taker, NULL));
    REQUIRE(pthread_join(leaver, NULL));
    unsigned took_ms = (unsigned)((scene_now_ns() - start_ns) / MS_NS);
    if (took_ms >= LONG_MS)
        printf("the allocation took %u ms\n", took_ms);
    return took_ms >= LONG_MS;
}

/* A wake that lacks memory gives idle memory back. For that it waits for the jobs of the pool. */
ACT(a_wake_without_memory_waits_for_no_allocation_at_the_gate)
{
    if (begin_alone(1))
        return SCENE_SKIP;
    if (!asker_page())
        return 0;
    begin_to_leave();
    REQUIRE(SIM(simFail)("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY)); /* the wake's first one */
    return goes_on_late() || wrong_a();
}

static void *end_second(void *unused)
{
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_reset());
    return unused;
}

/* It takes access from the pool that the allocation is of. The wake waits for that. */
ACT(an_ending_context_waits_for_no_allocation_at_the_gate)
{
    bool can = false;
    if (begin_alone(2))
        return SCENE_SKIP;
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can || !asker_page())
        return 0;
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_peer_enable(0));
    (void)NEW_BLOCK(BYTES);
    REQUIRE(gpu_open(0));
    begin_to_leave();
    pthread_t ender = NEW_THREAD(end_second, NULL);
    scene_sleep_ms(50); /* it waits until the park has closed the driver, or has not */
    bool late = goes_on_late();
    REQUIRE(pthread_join(ender, NULL));
    return late || wrong_a();
}

static int took;

static void *take_too_much(void *unused)
{
    uint64_t block;
    REQUIRE(cuCtxSetCurrent(context));
    took = gpu_malloc(&block, 300 * MIB);
    return unused;
}

/* The device has no room for it beside what the process has. It does not come between. */
ACT(an_allocation_that_wakes_takes_no_room_of_what_is_away)
{
    if (begin_alone(1))
        return SCENE_SKIP;
    uint64_t large = NEW_BLOCK(256 * MIB);
    REQUIRE(gpu_memset(large, 5, 256 * MIB));
    REQUIRE(gpu_sync());
    (void)leave(NULL);
    if (asker_page())
        REQUIRE(SIM(simHold)("cuMemHostRegister_v2")); /* once the driver is open */
    pthread_t other = NEW_THREAD(take_too_much, NULL);
    scene_await_held(asker_page() != NULL);
    scene_sleep_ms(50);
    SIM(simLetGo)("cuMemHostRegister_v2");
    REQUIRE(pthread_join(other, NULL));
    printf("too much: %d\n", took);
    return wrong_a() || scene_wrong_words(large, 64 * MIB, 0x5050505, NULL);
}

static void *destroy(void *ending)
{
    REQUIRE(cuCtxDestroy(ending));
    return NULL;
}

/* The ender waits until the device memory has gone, and is in the driver when the process would
 * leave. Where the machine is busy, it comes too late. */
ACT(an_ending_context_keeps_the_process_on_the_device)
{
    bool told = false;
    if (begin_alone(1))
        return SCENE_SKIP;
    if (!asker_page())
        return 0;
    for (unsigned ms = 50; ms <= 1600 && !told; ms *= 2) {
        CUcontext ending = NEW_CONTEXT();
        REQUIRE(cuCtxSetCurrent(context));
        REQUIRE(SIM(simHold)("cuMemRelease"));
        REQUIRE(SIM(simHold)("cuCtxDestroy_v2"));
        leaver = NEW_THREAD(leave, NULL);
        scene_await_held(1);
        pthread_t ender = NEW_THREAD(destroy, ending);
        scene_sleep_ms(ms);
        SIM(simLetGo)("cuMemRelease");
        scene_sleep_ms(ms);
        SIM(simLetGo)("cuCtxDestroy_v2");
        REQUIRE(pthread_join(leaver, NULL));
        REQUIRE(pthread_join(ender, NULL));
        told = strstr(asker_reply(), "\"state\":\"parked\",\"why\":\"a context is ending\"");
        EXPECT(wrong_a() == 0);
    }
    return !told;
}
