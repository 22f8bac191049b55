/* SPDX-License-Identifier: BSD-2-Clause */
/* Access of one device to the memory of another, while other threads make and end contexts, or give
 * the same access. */
#include "tests/preload/scene.h"

enum { WORDS = 16 * 1024, VALUE = 7 };

/* Calls of the function wait in the simulated driver. */
static void hold(const char *function)
{
    if (scene_simulated())
        REQUIRE(SIM(simHold)(function));
}

static void let_go(const char *function)
{
    if (scene_simulated())
        SIM(simLetGo)(function);
}

/* A copy of the current context's. */
static int copy_failed(uint64_t block)
{
    uint32_t word = 0;
    return cuMemcpyDtoH(&word, block, sizeof word) != CUDA_SUCCESS || word != VALUE;
}

/* A context's pool takes memory when it starts. While that memory is being mapped, access to its
 * device is given or taken away. */

static void *make_large(void *out)
{
    uint64_t *block = out;
    REQUIRE(gpu_open(1));
    *block = NEW_BLOCK(8 * MIB);
    return NULL;
}

/* Returns the block. */
static uint64_t make_beside(int (*change)(int peer))
{
    uint64_t block = 0;
    hold("cuMemSetAccess");
    pthread_t maker = NEW_THREAD(make_large, &block);
    if (scene_simulated() && scene_preloaded())
        scene_await_held(1);
    printf("change: %d\n", change(1));
    let_go("cuMemSetAccess");
    REQUIRE(pthread_join(maker, NULL));
    return block;
}

/* Returns a block of device 0, whose context is current from here on. */
static uint64_t start_with_preallocation(void)
{
    REQUIRE(setenv("GPUCACHE_PREALLOC", "64M", 1));
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_open(0));
    uint64_t own = NEW_FILLED(WORDS, VALUE, NULL);
    REQUIRE(gpu_sync());
    return own;
}

/* By a kernel. */
static int write_there(uint64_t block, uint64_t own)
{
    REQUIRE(gpu_copy(block, own, WORDS, NULL));
    int rc = gpu_sync();
    printf("a kernel there: %d\n", rc);
    return rc;
}

ACT(access_reaches_memory_that_is_being_mapped_for_a_new_context)
{
    uint64_t own = start_with_preallocation();
    uint64_t block = make_beside(gpu_peer_enable);
    return write_there(block, own) || scene_wrong_words(block, WORDS, VALUE, NULL) ||
           copy_failed(block);
}

ACT(access_that_is_taken_leaves_memory_that_is_being_mapped)
{
    uint64_t own = start_with_preallocation();
    REQUIRE(gpu_peer_enable(1));
    uint64_t block = make_beside(gpu_peer_disable);
    return write_there(block, own) != CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* The end of a context fails. Meanwhile its device's memory comes into reach, by way of another
 * context there. */

static void *end_context(void *ctx)
{
    printf("end: %d\n", cuCtxDestroy(ctx));
    return NULL;
}

ACT(access_reaches_a_context_whose_end_fails)
{
    scene_start_peers(120);
    if (!scene_simulated())
        return SCENE_SKIP;
    CUcontext second = NULL;
    REQUIRE(gpu_open(1));
    REQUIRE(cuCtxCreate(&second, NULL, 0, 1));
    uint64_t block = NEW_FILLED(WORDS, VALUE, NULL);
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    REQUIRE(SIM(simFail)("cuCtxDestroy_v2", 1, CUDA_ERROR_UNKNOWN));
    hold("cuCtxDestroy_v2");
    pthread_t ender = NEW_THREAD(end_context, second);
    scene_await_held(1);
    int rc = gpu_peer_enable(1);
    let_go("cuCtxDestroy_v2");
    REQUIRE(pthread_join(ender, NULL));
    int failed = copy_failed(block);
    printf("enable: %d, %d copies failed\n", rc, failed);
    return failed;
}

/* Two threads of one context copy from the other device for the first time. What one of them tries
 * in order to give the access fails. The other one's succeeds. */

enum { ROUNDS = 12, TRIES = 4 };

struct two_grants {
    CUcontext ctx;
    uint64_t block;
    atomic_int failed;
};

static int grant_beside(int index, void *context)
{
    struct two_grants *g = context;
    if (index < 2) {
        REQUIRE(cuCtxSetCurrent(g->ctx));
        atomic_fetch_add(&g->failed, copy_failed(g->block));
        return 0;
    }
    scene_sleep_ms(20); /* one waits in the driver, and one for its turn */
    for (unsigned i = 1; i <= TRIES && scene_simulated(); i++)
        REQUIRE(SIM(simFail)("cuMemSetAccess", i, CUDA_ERROR_OUT_OF_MEMORY));
    let_go("cuMemSetAccess");
    return 0;
}

ACT(a_grant_that_fails_takes_no_access_from_another_thread)
{
    static struct two_grants g;
    int failed = 0;
    scene_start(2, 120);
    REQUIRE(gpu_open(1));
    g.block = NEW_FILLED(WORDS, VALUE, NULL);
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    for (int i = 0; i < ROUNDS; i++) {
        g.ctx = NEW_CONTEXT();
        atomic_store(&g.failed, 0);
        hold("cuMemSetAccess");
        scene_threads(3, grant_beside, &g);
        failed += atomic_load(&g.failed) > 1;
        if (scene_simulated())
            SIM(simFailClear)("cuMemSetAccess");
        REQUIRE(cuCtxDestroy(g.ctx));
        REQUIRE(gpu_open(0));
    }
    printf("none has access in %d rounds\n", failed);
    return failed;
}

/* Two threads of one context enable the same access. The driver tells the second one that it is
 * there already, while the first one still gives it to what is mapped, or fails to. */

static void *enable_first(void *data)
{
    (void)data;
    REQUIRE(gpu_open(0));
    gpu_peer_enable(1);
    return NULL;
}

static void *let_go_late(void *fails)
{
    scene_sleep_ms(50);
    for (unsigned i = 1; i <= 2 * TRIES && fails && scene_simulated(); i++) /* see access.c */
        REQUIRE(SIM(simFail)("cuMemSetAccess", i, CUDA_ERROR_INVALID_VALUE));
    let_go("cuMemSetAccess");
    return NULL;
}

static int enable_twice(bool first_fails)
{
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    uint64_t block = NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    uint64_t own = NEW_FILLED(WORDS, VALUE, NULL);
    REQUIRE(gpu_sync());
    hold("cuMemSetAccess");
    pthread_t first = NEW_THREAD(enable_first, NULL);
    if (scene_simulated() && scene_preloaded())
        scene_await_held(1);
    pthread_t later = NEW_THREAD(let_go_late, first_fails ? &first : NULL);
    int rc = gpu_peer_enable(1);
    EXPECT(rc == CUDA_SUCCESS || rc == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    rc = write_there(block, own);
    REQUIRE(pthread_join(first, NULL));
    REQUIRE(pthread_join(later, NULL));
    return rc;
}

ACT_IS(ACT(access_that_is_there_already_is_whole), enable_twice(false))
ACT_IS(ACT(access_that_another_thread_fails_to_give_is_given), enable_twice(true))

/* Access that has been there for long is told at once, while other access is being given. */

static void *enable_back(void *data)
{
    (void)data;
    REQUIRE(gpu_open(1));
    gpu_peer_enable(0);
    return NULL;
}

ACT(access_that_is_whole_waits_for_no_other)
{
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_peer_enable(1));
    hold("cuMemSetAccess");
    pthread_t other = NEW_THREAD(enable_back, NULL);
    if (scene_simulated() && scene_preloaded())
        scene_await_held(1);
    uint64_t begin_ns = scene_now_ns();
    printf("again: %d", gpu_peer_enable(1));
    printf("%s\n", scene_now_ns() - begin_ns < 1000 * MS_NS ? ", at once" : "");
    let_go("cuMemSetAccess");
    REQUIRE(pthread_join(other, NULL));
    return 0;
}

/* A thread enables and another one disables one pair at once, twice. What is mapped is in reach if
 * the driver says that the access is enabled. */

enum { FLIPS = 300 };

static int flip(int index, void *context)
{
    atomic_int *starts = context;
    REQUIRE(gpu_open(0));
    atomic_fetch_add(starts, 1);
    while (atomic_load(starts) < 2)
        continue;
    for (int i = 0; i < 1 + index; i++)
        index == 0 ? gpu_peer_enable(1) : gpu_peer_disable(1);
    return 0;
}

ACT(what_is_mapped_is_in_reach_as_the_driver_says)
{
    atomic_int starts;
    int wrong = 0;
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    uint64_t block = NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    for (int i = 0; i < FLIPS; i++) {
        i % 2 ? gpu_peer_enable(1) : gpu_peer_disable(1);
        atomic_store(&starts, 0);
        scene_threads(2, flip, &starts);
        bool reached = scene_is_mapped_for(0, block), enabled = gpu_peer_disable(1) == CUDA_SUCCESS;
        wrong += scene_is_mapped_for(1, block) && reached != enabled; /* it is mapped */
        gpu_last_error();
    }
    printf("%d times not\n", wrong);
    return wrong;
}

/* Access that has been there is disabled, enabled and disabled once more, each time by another
 * thread. Each of them is told that it did so, and the driver has no access left. */

static void *change_access(void *change)
{
    REQUIRE(gpu_open(0));
    REQUIRE((*(int (**)(int peer))change)(1));
    return NULL;
}

ACT(an_enable_takes_effect_once)
{
    int (*enable)(int peer) = gpu_peer_enable, (*disable)(int peer) = gpu_peer_disable;
    scene_start_peers(120);
    if (!scene_simulated())
        return SCENE_SKIP;
    REQUIRE(gpu_open(1));
    NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_peer_enable(1));
    hold("cuCtxEnablePeerAccess");
    pthread_t second = NEW_THREAD(change_access, &enable);
    scene_await_held(1);
    REQUIRE(gpu_peer_disable(1));
    hold("cuCtxDisablePeerAccess");
    pthread_t third = NEW_THREAD(change_access, &disable);
    scene_await_held(2);
    let_go("cuCtxEnablePeerAccess");
    scene_sleep_ms(50); /* the access is there again, and the enable waits or is through */
    let_go("cuCtxDisablePeerAccess");
    REQUIRE(pthread_join(second, NULL));
    REQUIRE(pthread_join(third, NULL));
    int rc = gpu_peer_disable(1);
    printf("once more: %d\n", rc);
    return rc != CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* A child that is forked while another thread gives access waits for nobody. */

ACT(a_forked_child_does_not_wait_for_access)
{
    int status = 0;
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_open(0));
    NEW_BLOCK(8 * MIB);
    CUcontext peer = NULL;
    REQUIRE(cuDevicePrimaryCtxRetain(&peer, 1));
    hold("cuMemSetAccess");
    pthread_t other = NEW_THREAD(enable_first, NULL);
    if (scene_simulated() && scene_preloaded())
        scene_await_held(1);
    pid_t child = scene_fork();
    if (child == 0) {
        uint64_t begin_ns = scene_now_ns();
        bool refused = cuCtxEnablePeerAccess(peer, 0) && cuCtxDisablePeerAccess(peer);
        _exit(refused && scene_now_ns() - begin_ns < 5000 * MS_NS ? 0 : 1);
    }
    status = scene_wait(child);
    printf("child: %d\n", status);
    let_go("cuMemSetAccess");
    REQUIRE(pthread_join(other, NULL));
    return status;
}
