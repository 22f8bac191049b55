/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts that the program makes: attached, pushed, destroyed, broken, ended beside other work. */
#include "tests/preload/ending_contexts.h"
#include "tests/preload/scene.h"

#include <sys/time.h>

/* The program makes several contexts of one device by the driver API. A block belongs to the
 * context in which it was allocated, and may be freed while another one is current. When a context
 * is destroyed its live blocks end with it. The next context starts afresh. */

enum { CONTEXTS = 2 };

static int destroy_with_live_blocks(int round)
{
    uint64_t live[4];
    CUcontext context = NEW_CONTEXT();
    for (int i = 0; i < 4; i++) {
        live[i] = NEW_BLOCK((size_t)(i + 1) * MIB);
        REQUIRE(gpu_memset(live[i], round, 64 * KIB));
    }
    TAKE_AND_GIVE(16 * MIB);
    size_t wrong = scene_wrong_bytes(live[3], 64 * KIB, (unsigned char)round);
    printf("destroyed with live blocks: %d, %zu wrong bytes\n", (int)cuCtxDestroy(context), wrong);
    return (int)wrong;
}

ACT(contexts_have_memory_of_their_own)
{
    const uint64_t words = 32 * KIB;
    CUcontext context[CONTEXTS];
    uint64_t block[CONTEXTS];
    uint32_t wrong = 0;
    scene_start(1, 60);
    CUcontext primary = CURRENT_CONTEXT();
    for (int i = 0; i < CONTEXTS; i++) {
        context[i] = NEW_CONTEXT();
        block[i] = NEW_FILLED(words, 70 + (uint32_t)i, NULL);
        REQUIRE(gpu_sync());
    }
    for (int i = 0; i < CONTEXTS; i++) {
        REQUIRE(cuCtxSetCurrent(context[i]));
        wrong += scene_wrong_words(block[i], words, 70 + (uint32_t)i, NULL);
    }
    /* The second one is current: the first one's block is freed from there. */
    REQUIRE(cuCtxPushCurrent(context[0]));
    uint64_t pushed = NEW_FILLED(words, 90, NULL);
    wrong += scene_wrong_words(pushed, words, 90, NULL);
    CUcontext popped = NULL;
    REQUIRE(cuCtxPopCurrent(&popped));
    EXPECT(popped == context[0]);
    REQUIRE(gpu_free(pushed));
    printf("free in another context: %d\n", gpu_free(block[0]));
    REQUIRE(cuCtxSetCurrent(primary));
    printf("free in the primary context: %d\n", gpu_free(block[1]));
    printf("and twice: %d\n", gpu_free(block[1]));
    REQUIRE(cuCtxSetCurrent(NULL));
    printf("without a context: %d\n", gpu_malloc(&block[0], 4096));
    for (int i = 0; i < CONTEXTS; i++)
        REQUIRE(cuCtxDestroy(context[i]));

    REQUIRE(cuCtxSetCurrent(primary));
    size_t before = FREE_BYTES();
    for (int round = 1; round <= 3; round++) {
        wrong += (uint32_t)destroy_with_live_blocks(round);
        REQUIRE(cuCtxSetCurrent(primary));
    }
    size_t after = FREE_BYTES();
    /* A real driver keeps some of what a context cost. */
    if (scene_simulated())
        printf("what they held is %s\n", after + 8 * MIB >= before ? "free" : "lost");
    block[0] = NEW_FILLED(words, 1, NULL);
    wrong += scene_wrong_words(block[0], words, 1, NULL);
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}

/* A context that is attached lives, with its memory, until its last use is detached, or until it is
 * destroyed. The next one starts afresh. */

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* of cuCtxAttach and cuCtxDetach */

enum { ROUNDS = 4, EARLY_ROUNDS = 20, OVERTAKING_ROUNDS = 24, USES = 3, LARGE_BYTES = 64 * MIB };

static const uint64_t words = 16 * KIB;

/* The block is used, and another one is made, used and freed. */
static uint32_t use_and_make(uint64_t block, uint32_t value)
{
    uint64_t other = NEW_BLOCK(words * 4);
    EXPECT(other != block);
    REQUIRE(gpu_fill(other, words, value + 1, NULL));
    uint32_t wrong = scene_wrong_words(block, words, value, NULL) +
                     scene_wrong_words(other, words, value + 1, NULL);
    REQUIRE(gpu_free(other));
    return wrong;
}

static uint32_t detach_each(uint32_t round)
{
    CUcontext context = NEW_CONTEXT();
    NEW_BLOCK(LARGE_BYTES);
    uint64_t block = NEW_FILLED(words, round, NULL);
    for (int i = 0; i < USES; i++) {
        CUcontext same = NULL;
        REQUIRE(cuCtxAttach(&same, 0));
        EXPECT(same == context);
    }
    uint32_t wrong = use_and_make(block, round);
    for (int i = 0; i < USES; i++) {
        int rc = (int)cuCtxDetach(context);
        REQUIRE(cuCtxSetCurrent(context));
        wrong += use_and_make(block, round);
        printf("detached %d, %u wrong; ", rc, wrong);
    }
    printf("attached in vain %d; ", (int)cuCtxAttach(&context, 1));
    wrong += use_and_make(block, round);
    printf("the last one %d, %u wrong\n", (int)cuCtxDetach(context), wrong);
    return wrong;
}

static uint32_t destroy_attached(uint32_t round)
{
    CUcontext same = NULL;
    CUcontext context = NEW_CONTEXT();
    REQUIRE(cuCtxAttach(&same, 0));
    uint64_t block = NEW_FILLED(words, round, NULL);
    uint32_t wrong = use_and_make(block, round);
    printf("destroyed %d, %u wrong\n", (int)cuCtxDestroy(context), wrong);
    return wrong;
}

ACT(a_context_lives_until_its_last_use)
{
    uint32_t wrong = 0;
    scene_start(1, 60);
    CUcontext primary = CURRENT_CONTEXT();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        /* The driver may give the next context the handle of this one. */
        wrong += destroy_attached(10 * round + 5);
        REQUIRE(cuCtxSetCurrent(primary));
        size_t before = FREE_BYTES();
        wrong += detach_each(10 * round);
        REQUIRE(cuCtxSetCurrent(primary));
        /* The first may leave what the driver then keeps. */
        printf("its memory is %s\n",
               round == 0 || FREE_BYTES() + LARGE_BYTES / 2 >= before ? "back" : "lost");
    }
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}

/* Two threads detach a context at a time. The one that began first may come last to the driver, and
 * end the context. */

static CUcontext twice_used;

static int detach_here(int index, void *unused)
{
    REQUIRE(cuCtxSetCurrent(twice_used));
    return (int)cuCtxDetach(twice_used);
}

static void *let_detachments_go(void *unused)
{
    if (scene_simulated()) {
        scene_await_held(2);
        SIM(simLetGo)("cuCtxDetach");
    }
    return NULL;
}

ACT(a_detachment_that_another_overtakes_ends_the_context)
{
    int failed = 0;
    scene_start(1, 60);
    CUcontext same, primary = CURRENT_CONTEXT();
    size_t before = FREE_BYTES();
    for (int left = OVERTAKING_ROUNDS; left > 0; left--) {
        twice_used = NEW_CONTEXT();
        REQUIRE(cuCtxAttach(&same, 0));
        NEW_BLOCK(LARGE_BYTES);
        if (scene_simulated())
            REQUIRE(SIM(simHold)("cuCtxDetach"));
        pthread_t holder = NEW_THREAD(let_detachments_go, NULL);
        failed += scene_threads(2, detach_here, NULL);
        REQUIRE(pthread_join(holder, NULL));
        REQUIRE(cuCtxSetCurrent(primary));
    }
    bool lost = FREE_BYTES() + LARGE_BYTES / 2 < before;
    printf("%d failed, memory is %s\n", failed, lost ? "lost" : "all there");
    return lost || failed;
}

/* Kernels with leave to start early use memory that was freed while the kernel before them still
 * runs. Meanwhile another context of the thread, which allocates nothing, gets kernels. Both use
 * their default streams, which have the same name, so the other context's kernels must not count
 * here. */

static void launch_beside(CUcontext context, CUstream stream)
{
    CUcontext popped = NULL;
    REQUIRE(cuCtxPushCurrent(context));
    REQUIRE(gpu_spin(1000, stream));
    REQUIRE(cuCtxPopCurrent(&popped));
}

static uint32_t reuse(CUcontext beside, CUstream stream, uint32_t round)
{
    uint64_t n = words;
    scene_free_late(words, MS_NS, stream);
    launch_beside(beside, stream);
    uint64_t block = NEW_BLOCK(words * 4);
    REQUIRE(gpu_launch_early(GPU_FILL, stream, (void *[]){&block, &n, &round}));
    uint32_t wrong = scene_wrong_words(block, words, round, stream);
    REQUIRE(gpu_free(block));
    return wrong;
}

static void play(const char *name, CUcontext beside, CUstream stream)
{
    uint32_t wrong = 0;
    scene_run_alone(stream, true);
    REQUIRE(gpu_stream_sync(stream));
    for (uint32_t round = 0; round < EARLY_ROUNDS; round++)
        wrong += reuse(beside, stream, round);
    REQUIRE(gpu_sync());
    printf("%s: %u wrong words\n", name, wrong);
    EXPECT(wrong == 0);
}

ACT(early_launches_in_two_contexts)
{
    scene_start(1, 120);
    CUcontext own = CURRENT_CONTEXT(), beside = NEW_CONTEXT();
    REQUIRE(cuCtxSetCurrent(own));
    play("legacy stream", beside, CU_STREAM_LEGACY);
    play("per-thread stream", beside, CU_STREAM_PER_THREAD);
    REQUIRE(cuCtxDestroy(beside));
    return 0;
}

/* A kernel has broken one thread's context, and that thread asks about it again and again. Another
 * thread makes, uses and destroys contexts of its own, and those work. */

/* A real driver takes its time for each. */
enum { LIVES = 100, LIVES_REAL = 20, LIFE_BLOCKS = 4 };
static const uint64_t nowhere = 0x1000;
static atomic_bool is_broken, over;

static int break_own(void)
{
    int others = 0;
    NEW_CONTEXT();
    NEW_BLOCK(512);
    CUstream stream = NEW_STREAM(true);
    REQUIRE(gpu_fill(nowhere, 1024, 1, stream));
    others += gpu_sync() != CUDA_ERROR_ILLEGAL_ADDRESS;
    atomic_store(&is_broken, true);
    while (!atomic_load(&over))
        others += gpu_sync() != CUDA_ERROR_ILLEGAL_ADDRESS;
    return others;
}

static int use_others(void)
{
    int failed = 0;
    while (!atomic_load(&is_broken))
        scene_sleep_ms(1);
    int contexts = scene_simulated() ? LIVES : LIVES_REAL;
    for (int i = 0; i < contexts; i++) {
        uint64_t blocks[LIFE_BLOCKS] = {0};
        CUcontext own = NEW_CONTEXT();
        for (int j = 0; j < LIFE_BLOCKS; j++)
            failed += gpu_malloc(&blocks[j], 4 * KIB << (4 * j)) != 0 ||
                      gpu_memset(blocks[j], i, 64) != 0;
        for (int j = 0; j < LIFE_BLOCKS; j++)
            failed += gpu_free(blocks[j]) != 0;
        failed += gpu_malloc(&blocks[0], 4 * KIB) != 0;
        REQUIRE(cuCtxDestroy(own));
    }
    atomic_store(&over, true);
    return failed;
}

static int break_or_use(int index, void *unused)
{
    return index == 0 ? break_own() : use_others();
}

ACT(contexts_beside_a_broken_one_work)
{
    /* The simulated driver takes 100 us where it is asked which context is current. */
    scene_cost("cuCtxGetCurrent", "100000");
    scene_start(1, 120);
    int failed = scene_threads(2, break_or_use, NULL);
    printf("%d failed\n", failed);
    return failed != 0;
}

/* A thread ends contexts that have memory. Meanwhile other threads allocate in stream order. Their
 * memory may come to the same addresses. It is device memory at once, and can be freed. */

enum { MAKERS = 3 };

static atomic_bool all_ended;

static int allocate_beside(int index, void *data)
{
    const int *num_contexts = data;
    int wrong = 0;
    REQUIRE(gpu_open(0));
    if (index == MAKERS) {
        end_contexts(*num_contexts);
        atomic_store(&all_ended, true);
        return 0;
    }
    for (int round = 0; !atomic_load(&all_ended); round++) {
        uint64_t made = 0, base = 0;
        size_t size_bytes = 0;
        REQUIRE(gpu_malloc_async(&made, (size_t)(1 + (index + round) % 4) * MIB, NULL));
        if (round % 2) { /* else the free is the first to come to the address */
            wrong += scene_device_of(made) < 0;
            wrong += gpu_address_range(&base, &size_bytes, made) != 0;
        }
        wrong += gpu_free_async(made, NULL) != 0;
    }
    return wrong;
}

static int known_beside(int num_contexts)
{
    scene_start(1, 60);
    printf("%d wrong\n", scene_threads(MAKERS + 1, allocate_beside, &num_contexts));
    return 0;
}

ACT(memory_in_stream_order_is_known_beside_contexts_that_end)
{
    contexts_end_slowly();
    return known_beside(ENDING_CONTEXTS);
}

/* The driver goes on for long after it has given the addresses back. */
ACT(memory_in_stream_order_is_known_beside_contexts_that_take_long)
{
    contexts_take_ns("200000000");
    return known_beside(4);
}

/* A signal handler interrupts the call that ends a context, and asks about the context's memory.
 * Nobody else ends the context, so the answer comes at once. A real driver may hold locks there. */

static uint64_t asked_about;
static atomic_uint_fast64_t answered_ns;

static void ask_in_handler(int signal_number)
{
    uint64_t start_ns = scene_now_ns();
    (void)scene_device_of(asked_about);
    atomic_store(&answered_ns, scene_now_ns() - start_ns);
    gpu_last_error();
}

ACT(a_handler_in_the_end_of_a_context_waits_for_nobody)
{
    struct sigaction action = {.sa_handler = ask_in_handler, .sa_flags = SA_RESTART};
    struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    contexts_take_ns("300000000");
    scene_start(1, 60);
    CUcontext ctx = NEW_CONTEXT();
    asked_about = NEW_BLOCK(4 * MIB);
    REQUIRE(sigaction(SIGALRM, &action, NULL));
    if (scene_simulated())
        REQUIRE(setitimer(ITIMER_REAL, &soon, NULL));
    REQUIRE(cuCtxDestroy(ctx));
    while (scene_simulated() && !atomic_load(&answered_ns))
        scene_sleep_ms(1);
    bool late = atomic_load(&answered_ns) > 1000 * MS_NS;
    printf("the answer comes %s\n", late ? "late" : "at once");
    return 0;
}

/* The library asks whether a context lives while the program makes another. A signal handler
 * interrupts that, and destroys the context. */

static CUcontext to_destroy;
static atomic_int destroyed;

static void destroy_in_handler(int signal_number)
{
    atomic_store(&destroyed, cuCtxDestroy(to_destroy) == CUDA_SUCCESS ? 1 : -1);
}

ACT(a_handler_ends_a_context_that_its_own_thread_asks_about)
{
    struct sigaction action = {.sa_handler = destroy_in_handler, .sa_flags = SA_RESTART};
    struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    if (scene_sanitized()) /* the simulated driver frees host memory in the handler */
        return SCENE_SKIP;
    scene_cost("cuCtxGetApiVersion", "300000000");
    scene_start(1, 60);
    if (!scene_simulated()) /* a real driver may hold locks there */
        return SCENE_SKIP;
    to_destroy = NEW_CONTEXT();
    NEW_BLOCK(4 * MIB);
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(sigaction(SIGALRM, &action, NULL));
    REQUIRE(setitimer(ITIMER_REAL, &soon, NULL));
    CUcontext other = NEW_CONTEXT();
    while (!atomic_load(&destroyed))
        scene_sleep_ms(1);
    printf("destroyed: %d\n", atomic_load(&destroyed));
    uint64_t block = NEW_BLOCK(4 * MIB);
    REQUIRE(gpu_memset(block, 1, 4 * MIB));
    REQUIRE(cuCtxDestroy(other));
    return 0;
}

/* Contexts end while the library looks whether their work is done, by events of theirs. The driver
 * reads what it has freed where an event of a context that has ended is used. The simulated driver
 * takes its time for the question whether a context lives, so that the context may end right after
 * it. */

ACT(flushes_beside_contexts_that_end)
{
    enum { ENDS = 60, ENDS_REAL = 8, BLOCKS = 6 };
    scene_cost("cuCtxGetApiVersion", "300000");
    scene_cost("cuEventQuery", "50000");
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "every:1ms", 1));
    scene_start(1, 60);
    for (int left = scene_simulated() ? ENDS : ENDS_REAL; left > 0; left--) {
        uint64_t blocks[BLOCKS];
        CUcontext context = NEW_CONTEXT();
        CUstream streams[2] = {NEW_STREAM(false), NEW_STREAM(false)};
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = NEW_BLOCK((size_t)(i + 1) * MIB);
            REQUIRE(gpu_spin_fill(blocks[i], MIB / 4, 7, MS_NS / 2, streams[i % 2]));
        }
        FREE_ALL(blocks, BLOCKS);
        if (scene_preloaded())
            kill(getpid(), SIGUSR1); /* the flush waits for what was freed behind work */
        usleep((useconds_t)(left % 8) * 400);
        REQUIRE(cuCtxDestroy(context));
    }
    puts("they ended");
    return 0;
}

/* A driver that says at a free that the context has ended: the address may be another context's by
 * now, so the free is not made in another way. */
ACT(a_free_that_meets_the_end_is_not_made_again)
{
    const char *backing = getenv("GPUCACHE_BACKING");
    scene_start(1, 60);
    if (!scene_simulated())
        return SCENE_SKIP;
    NEW_BLOCK(64 * MIB);
    TAKE_AND_GIVE(64 * MIB);
    uint64_t used = SIM(simDeviceBytesUsed)(0);
    if (scene_preloaded() && backing && strcmp(backing, "segment") == 0) {
        REQUIRE(SIM(simFail)("cuMemFreeAsync", 1, CUDA_ERROR_CONTEXT_IS_DESTROYED));
        REQUIRE(kill(getpid(), SIGUSR1));
        scene_sleep_ms(200);
        EXPECT(SIM(simDeviceBytesUsed)(0) == used);
        TAKE_AND_GIVE(128 * MIB);
        REQUIRE(kill(getpid(), SIGUSR1)); /* the free after it is made */
        for (int ms = 0; SIM(simDeviceBytesUsed)(0) > used && ms < 5000; ms++)
            scene_sleep_ms(1);
        EXPECT(SIM(simDeviceBytesUsed)(0) <= used);
    }
    return 0;
}
