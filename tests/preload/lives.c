/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts one after the other, and green ones. */
#include "tests/preload/scene.h"

/* A device is reset and used again. One stream was enough in its first life. That says nothing
 * about work of the second life, whose default stream has the same name. */

enum { LIFE_BLOCKS = 600 };
static const uint64_t life_words = 16 * KIB;

ACT(second_life)
{
    static uint64_t blocks[LIFE_BLOCKS];
    uint32_t wrong = 0;
    scene_start(1, 120);
    CUstream stream = NEW_STREAM(false);
    scene_run_alone(stream, true);
    scene_run_alone(CU_STREAM_LEGACY, true);
    REQUIRE(gpu_stream_destroy(stream));
    printf("reset: %d\n", gpu_reset());
    REQUIRE(gpu_open(0));

    stream = NEW_STREAM(false);
    TAKE_AND_GIVE(48 * MIB); /* nothing has to wait for what was freed lately */
    for (int i = 0; i < 6; i++)
        scene_run_alone(stream, true);
    uint64_t old = NEW_BLOCK(life_words * 4);
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_spin_fill(old, life_words, 0xdead, 100 * MS_NS, stream));
    scene_run_alone(CU_STREAM_LEGACY, false);
    REQUIRE(gpu_free(old));
    for (int i = 0; i < LIFE_BLOCKS; i++)
        blocks[i] = NEW_FILLED(life_words, 7, CU_STREAM_LEGACY);
    REQUIRE(gpu_stream_sync(stream));
    for (int i = 0; i < LIFE_BLOCKS; i++) {
        wrong += scene_wrong_words(blocks[i], life_words, 7, CU_STREAM_LEGACY);
        REQUIRE(gpu_free(blocks[i]));
    }
    printf("%u wrong life_words\n", wrong);
    return wrong != 0;
}

/* Very many contexts one after the other, more than a process ever has at a time, each with memory
 * of several sizes, some of it left to its end. Every other one ends by a reset, as in a test
 * runner. The process does not grow with them, and no device memory is lost. */

/* The first ones may leave what the others then use. A simulated context leaves a few hundred
 * bytes, under a sanitizer some thousand. */
enum { FIRST = 50, CONTEXTS = 800, CONTEXTS_REAL = 60, SIZES = 6, GROWN_MAX_BYTES = 8192 };

static void use_one(uint32_t number)
{
    static const size_t sizes[SIZES] = {512, 5000, 40 * KIB, 700 * KIB, 3 * MIB, 9 * MIB};
    CUcontext context = NULL;
    uint64_t blocks[2 * SIZES];
    uint32_t host = 0;
    if (number % 2)
        context = NEW_CONTEXT();
    for (int i = 0; i < 2 * SIZES; i++)
        blocks[i] = NEW_BLOCK(sizes[i % SIZES]);
    REQUIRE(gpu_put(blocks[0], &number, sizeof number));
    REQUIRE(gpu_get(&host, blocks[0], sizeof host));
    EXPECT(host == number);
    FREE_ALL(blocks, SIZES);
    REQUIRE(context != NULL ? (int)cuCtxDestroy(context) : gpu_reset());
    REQUIRE(gpu_open(0));
}

ACT(context_leak)
{
    size_t before = 0, first_free = 0;
    scene_start(1, 200);
    uint32_t contexts = scene_simulated() ? CONTEXTS : CONTEXTS_REAL;
    for (uint32_t number = 0; number < contexts; number++) {
        if (number == FIRST) {
            before = scene_resident_bytes();
            first_free = FREE_BYTES();
        }
        use_one(number);
    }
    size_t free_bytes = FREE_BYTES();
    bool lost = free_bytes + 64 * MIB < first_free;
    printf("device memory is %s\n", lost ? "lost" : "all there");
    size_t after = scene_resident_bytes();
    size_t grown = after > before ? (after - before) / (contexts - FIRST) : 0;
    /* A real driver keeps what it likes. */
    bool much = scene_simulated() && grown > GROWN_MAX_BYTES;
    printf("the process has grown %s with each\n", much ? "much" : "by next to nothing");
    if (much)
        printf("%zu bytes\n", grown);
    return much || lost;
}

/* Green contexts. What is allocated while one is current is memory of the primary context, also
 * for work of the other one's streams. A block that a late writer on a green stream uses is handed
 * out again only behind that writer. The end of a green context leaves its memory alone. The end
 * of the last one ends the primary context too. */

enum { ROUNDS = 40 };

static CUgreenCtx make_green(CUcontext *converted)
{
    CUdevResource whole, part;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    unsigned groups = 1;
    if (!scene_driver_has("cuGreenCtxCreate") ||
        cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cuDevSmResourceSplitByCount(&part, &groups, &whole, NULL, 0, 16) != CUDA_SUCCESS ||
        groups < 1)
        scene_skip("no green contexts");
    REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuCtxFromGreenCtx(converted, green));
    return green;
}

/* A block is written late by one context's stream and used again by the other one's. */
static uint32_t reuse(CUcontext first, CUstream on_first, CUcontext second, CUstream on_second)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        REQUIRE(cuCtxSetCurrent(first));
        scene_free_late(words, 300000, on_first);
        REQUIRE(cuCtxSetCurrent(second));
        uint64_t again = NEW_FILLED(words, round, on_second);
        wrong += scene_wrong_words(again, words, round, on_second);
        if (round % 8 == 0) {
            REQUIRE(cuCtxSetCurrent(first));
            REQUIRE(gpu_sync());
            REQUIRE(cuCtxSetCurrent(second));
            wrong += scene_wrong_words(again, words, round, on_second);
        }
        REQUIRE(gpu_free(again));
    }
    return wrong;
}

static CUcontext context_of(uint64_t block)
{
    CUcontext context = NULL;
    REQUIRE(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    return context;
}

/* The last user of the primary context is a green one. */
static uint32_t primary_context_of_a_green_one(void)
{
    CUcontext primary, converted;
    unsigned flags = 0;
    int active = -1;
    uint64_t kept;
    CUgreenCtx green = make_green(&converted);
    kept = NEW_BLOCK(8 * MIB);
    REQUIRE(cuCtxSetCurrent(NULL));
    printf("release %d", (int)cuDevicePrimaryCtxRelease(0));
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf(", active %d", active);
    REQUIRE(cuGreenCtxDestroy(green));
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf(", then %d\n", active);
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuCtxSetCurrent(primary));
    kept = NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_memset(kept, 5, 8 * MIB));
    uint32_t wrong = scene_wrong_bytes(kept, 8 * MIB, 5) != 0;
    REQUIRE(gpu_free(kept));
    return wrong;
}

ACT(green)
{
    CUcontext converted = NULL, by_stream = NULL;
    CUstream on_green = NULL;
    uint32_t wrong = 0;
    scene_start(1, 60);
    CUcontext primary = CURRENT_CONTEXT();
    uint64_t before = NEW_BLOCK(1 * MIB);
    CUgreenCtx green = make_green(&converted);
    REQUIRE(cuGreenCtxStreamCreate(&on_green, green, CU_STREAM_NON_BLOCKING, 0));
    CUstream on_primary = NEW_STREAM(false);
    REQUIRE(cuStreamGetCtx(on_green, &by_stream));
    printf("the stream's context is %s\n", by_stream == converted ? "the green one" : "another");

    REQUIRE(cuCtxSetCurrent(converted));
    CUstream inside = NEW_STREAM(false);
    uint64_t kept = NEW_BLOCK(3 * MIB);
    printf("memory of a green context belongs to %s\n",
           context_of(kept) == primary     ? "the primary context"
           : context_of(kept) == converted ? "it"
                                           : "another");
    REQUIRE(gpu_memset(kept, 77, 3 * MIB));
    REQUIRE(gpu_sync());

    uint32_t here = reuse(converted, on_green, primary, on_primary);
    printf("green stream, then the primary's: %u wrong words\n", here);
    wrong += here;
    here = reuse(primary, on_primary, converted, on_green);
    printf("the primary's, then the green stream: %u wrong words\n", here);
    wrong += here;
    here = reuse(converted, NULL, primary, NULL);
    printf("the default streams: %u wrong words\n", here);
    wrong += here;
    here = reuse(converted, inside, converted, on_green);
    printf("two streams of the green context: %u wrong words\n", here);
    wrong += here;

    /* Freed elsewhere: green memory in the primary context, and the other way round. */
    REQUIRE(cuCtxSetCurrent(converted));
    printf("free in the green context: %d\n", gpu_free(before));
    before = NEW_BLOCK(1 * MIB);
    REQUIRE(cuCtxSetCurrent(primary));
    printf("free in the primary context: %d\n", gpu_free(before));

    REQUIRE(gpu_stream_destroy(inside));
    REQUIRE(gpu_stream_destroy(on_green));
    REQUIRE(cuGreenCtxDestroy(green));
    wrong += scene_wrong_bytes(kept, 3 * MIB, 77) != 0;
    printf("after its end: free %d\n", gpu_free(kept));

    wrong += primary_context_of_a_green_one();
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}

/* ---- Children of a process that has not allocated yet, beside threads that take and give lives */

static atomic_bool takers_stop;

static void *take_and_give_lives(void *unused)
{
    CUcontext primary;
    while (!atomic_load(&takers_stop))
        if (!cuDevicePrimaryCtxRetain(&primary, 0))
            cuDevicePrimaryCtxRelease(0);
    return NULL;
}

static CUresult end_context(int way, CUcontext primary)
{
    CUcontext retained;
    switch (way) {
    case 0:
        return cuCtxDestroy(primary);
    case 1:
        return cuDevicePrimaryCtxRelease(0);
    case 2:
        return cuDevicePrimaryCtxReset(0);
    default:
        return cuDevicePrimaryCtxRetain(&retained, 0);
    }
}

ACT(ends_in_children)
{
    enum { CALLS = 4, TAKERS = 3 };
    pthread_t threads[TAKERS];
    CUcontext primary;
    int failed = 0;
    scene_start(1, 120);
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    for (int i = 0; i < TAKERS; i++)
        threads[i] = NEW_THREAD(take_and_give_lives, NULL);
    fflush(stdout);
    for (int i = 0; i < (scene_simulated() ? 15 * CALLS : CALLS); i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            _exit(end_context(i % CALLS, primary) ? 5 : 6);
        }
        failed += scene_wait(child) != 5;
    }
    atomic_store(&takers_stop, true);
    for (int i = 0; i < TAKERS; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("children beside lives: %d failed\n", failed);
    return failed != 0;
}
