/* SPDX-License-Identifier: BSD-2-Clause */
/* The primary context by the driver API: retained, released and reset, beside other threads too. */
#include "tests/preload/scene.h"

/* Of acts that open the device themselves: a watchdog; the number of devices, of which one is
 * needed. */
static int begin(unsigned watchdog_s)
{
    int count = 0;
    scene_watchdog(watchdog_s);
    if (gpu_device_count(&count) != 0 || count < 1)
        scene_skip("no device");
    return count;
}

static int is_active(void)
{
    unsigned flags = 0;
    int active = -1;
    REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
}

static CUcontext retain_as_current(void)
{
    CUcontext context = NULL;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
    REQUIRE(cuCtxSetCurrent(context));
    return context;
}

/* The program retains and releases the primary context by the driver API. It lives until its last
 * release, and its memory ends with it. Then it can be retained anew. */

ACT(the_primary_context_ends_with_its_last_user)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    begin(60);
    for (int round = 0; round < 4; round++) {
        CUcontext second = NULL;
        printf("round %d: active %d", round, is_active());
        REQUIRE(cuDevicePrimaryCtxRetain(&second, 0));
        retain_as_current();
        uint64_t live = NEW_BLOCK(words * 4), freed = NEW_BLOCK(8 * MIB);
        REQUIRE(gpu_memset(live, round, words * 4));
        REQUIRE(gpu_free(freed));
        printf(", release %d", (int)cuDevicePrimaryCtxRelease(0));
        printf(", active %d", is_active());
        wrong += scene_wrong_bytes(live, words * 4, (unsigned char)round) != 0;
        freed = NEW_BLOCK(8 * MIB);
        REQUIRE(gpu_memset(freed, 1, 64 * KIB));
        printf(", release %d", (int)cuDevicePrimaryCtxRelease(0));
        printf(", active %d\n", is_active());
        REQUIRE(cuCtxSetCurrent(NULL));
    }
    printf("one release too many: %d\n", (int)cuDevicePrimaryCtxRelease(0));
    printf("%u wrong\n", wrong);
    return wrong != 0;
}

/* A thread retains, uses and releases the primary context over and over. Others allocate for the
 * first time in contexts of their own, and give up uses of the primary one. It ends with the
 * program's last release, and not later. Each of its lives has memory that works. */

/* A real driver takes its time for each. */
enum { LIVES = 300, LIVES_REAL = 20, BLOCKS = 3, BYTES = 65536 };

static atomic_bool over;

/* In a new life nothing is current that was of the last one. */
static int live(uint32_t life, int *active_after)
{
    uint64_t block[BLOCKS];
    uint32_t wrong = 0;
    int failed = 0;
    retain_as_current();
    for (int i = 0; i < BLOCKS; i++) {
        failed += gpu_malloc(&block[i], BYTES) != 0 || gpu_memset(block[i], (int)life, BYTES) != 0;
        if (!failed)
            wrong += scene_wrong_bytes(block[i], BYTES, (unsigned char)life) != 0;
        if (i > 0)
            failed += gpu_free(block[i]) != 0;
    }
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    *active_after = is_active();
    return failed + (wrong != 0);
}

/* The pause lets the other thread have the simulator's lock, which is not fair. Without the pause
 * contexts pile up and each call walks all of them, so the lives take longer and longer. */
static int make_contexts(void)
{
    struct timespec pause = {.tv_nsec = 100000};
    int failed = 0;
    while (!atomic_load(&over)) {
        uint64_t block = 0;
        CUcontext own = NEW_CONTEXT();
        failed += gpu_malloc(&block, BYTES) != 0 || gpu_memset(block, 7, BYTES) != 0 ||
                  gpu_free(block) != 0;
        REQUIRE(cuCtxDestroy(own));
        nanosleep(&pause, NULL);
    }
    return failed;
}

static int either(int index, void *context)
{
    int *counts = context;
    if (index > 0)
        return make_contexts();
    uint32_t lives = scene_simulated() ? LIVES : LIVES_REAL;
    for (uint32_t life = 0; life < lives; life++) {
        int active = -1;
        counts[0] += live(life % 200, &active);
        counts[1] += active != 0;
    }
    atomic_store(&over, true);
    return 0;
}

ACT(it_ends_beside_contexts_of_other_threads)
{
    /* The simulated driver takes 300 us for a retain. */
    scene_cost("cuDevicePrimaryCtxRetain", "300000");
    int counts[2] = {0};
    begin(120);
    int failed = scene_threads(2, either, counts);
    printf("%d lives did not work, %d did not end, %d failures elsewhere\n", counts[0], counts[1],
           failed);
    return counts[0] || counts[1] || failed;
}

/* The device is reset, and its primary context retained anew, while other threads allocate for the
 * first time in it. The reset may take what they get. The memory of the life after that works,
 * every time. */

enum { ROUNDS = 150, ROUNDS_REAL = 6, ALLOCATING = 2, LIFE_BYTES = 65536 };

static CUcontext primary;
static atomic_int started;

static int allocate(int index, void *context)
{
    unsigned delay = *(unsigned *)context;
    uint64_t block = 0;
    if (index == 0) {
        while (atomic_load(&started) < ALLOCATING)
            ;
        for (volatile unsigned i = 0; i < delay; i++)
            ;
        REQUIRE(cuDevicePrimaryCtxReset(0));
        return 0;
    }
    REQUIRE(cuCtxSetCurrent(primary));
    atomic_fetch_add(&started, 1);
    (void)gpu_malloc(&block, LIFE_BYTES); /* a context that is being reset may say anything */
    return 0;
}

static int life_after(uint32_t round)
{
    uint64_t block = 0;
    primary = retain_as_current();
    unsigned char byte = (unsigned char)(round % 200);
    int failed = gpu_malloc(&block, LIFE_BYTES) != 0 || gpu_memset(block, byte, LIFE_BYTES) != 0 ||
                 scene_wrong_bytes(block, LIFE_BYTES, byte) != 0 || gpu_free(block) != 0;
    REQUIRE(cuDevicePrimaryCtxReset(0));
    return failed;
}

ACT(a_reset_beside_first_allocations_harms_no_later_life)
{
    /* The simulated driver takes 200 us for a look at the device, so a pool takes as long to make.
     */
    scene_cost("cuDeviceTotalMem_v2", "200000");
    int failed = 0;
    begin(120);
    uint32_t rounds = scene_simulated() ? ROUNDS : ROUNDS_REAL;
    for (uint32_t round = 0; round < rounds; round++) {
        unsigned delay = round * 2000;
        atomic_store(&started, 0);
        REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
        REQUIRE(scene_threads(ALLOCATING + 1, allocate, &delay));
        failed += life_after(round);
    }
    printf("%d of the lives afterwards did not work\n", failed);
    return failed != 0;
}

/* The last release of the primary context goes past every wrapper. When the program retains it
 * anew, the memory of the last life is not handed out, and the new life has memory that works. */

ACT(a_life_that_ended_unseen_serves_nothing_in_the_next_one)
{
    enum { UNSEEN = 4 };
    int wrong = 0;
    begin(60);
    CUresult (*release)(CUdevice) =
        (CUresult (*)(CUdevice))(uintptr_t)scene_drivers_own("cuDevicePrimaryCtxRelease_v2");
    if (release == NULL)
        scene_skip("the driver has another symbol table");
    for (int round = 0; round < UNSEEN; round++) {
        retain_as_current();
        uint64_t of_last_life = NEW_BLOCK(LIFE_BYTES), block = NEW_BLOCK(64 * MIB);
        REQUIRE(gpu_free(block));
        REQUIRE(cuCtxSetCurrent(NULL));
        REQUIRE(release(0));
        int active = is_active();
        retain_as_current();
        printf("active %d, free of the last life's %d\n", active, (int)cuMemFree(of_last_life));
        block = NEW_BLOCK(LIFE_BYTES);
        REQUIRE(gpu_memset(block, round, LIFE_BYTES));
        wrong += scene_wrong_bytes(block, LIFE_BYTES, (unsigned char)round) != 0;
        REQUIRE(gpu_free(block));
        REQUIRE(cuCtxSetCurrent(NULL));
        REQUIRE(cuDevicePrimaryCtxRelease(0));
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

/* ---- contexts that ended unseen serve nothing, and are not used
 * Contexts of both devices are destroyed past every wrapper. The next one may have a handle of
 * theirs. Its memory is its own device's. The library must use no event of one that ended. */

static int device_of(CUdeviceptr at)
{
    int device = -1;
    REQUIRE(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    return device;
}

static int contexts_end_unseen(const char *sim_reuse)
{
    int wrong = 0, count = 0;
    REQUIRE(setenv("SIM_CTX_REUSE", sim_reuse, 1));
    REQUIRE(setenv("SIM_DEVICES", "2", 1));
    count = begin(60);
    CUresult (*destroy)(CUcontext) =
        (CUresult (*)(CUcontext))(uintptr_t)scene_drivers_own("cuCtxDestroy_v2");
    if (destroy == NULL)
        scene_skip("the driver has another symbol table");
    for (int i = 0; i < 4; i++) {
        CUcontext context = NULL;
        CUdeviceptr block = 0;
        int device = i % count;
        REQUIRE(cuCtxCreate(&context, NULL, 0, device));
        for (int turn = 0; turn < 2; turn++) {
            REQUIRE(cuMemAlloc(&block, 8 * MIB));
            wrong += device_of(block) != device || cuMemsetD8(block, i, MIB) != CUDA_SUCCESS ||
                     cuCtxSynchronize() != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS;
        }
        REQUIRE(destroy(context));
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

ACT_IS(ACT(a_context_that_ended_unseen_serves_nothing_under_its_handle), contexts_end_unseen("2"))

ACT_IS(ACT(a_context_that_ended_unseen_is_not_used), contexts_end_unseen("0"))

static bool in_segments(void)
{
    const char *backing = getenv("GPUCACHE_BACKING"), *mapping = getenv("SIM_VMM");
    return (backing && strcmp(backing, "segment") == 0) || (mapping && strcmp(mapping, "0") == 0);
}

/* It is written after a reset and a retain, when the next life has memory too. The driver may have
 * given that memory the same address, and then the write is one of the next life. An arena has
 * another address. No error stays. */

ACT(memory_of_an_ended_life_is_refused_in_the_next_one)
{
    static const size_t sizes[] = {512, 300 * KIB, 3 * MIB, 40 * MIB};
    int lasts = 0, written = 0;
    begin(60);
    retain_as_current();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr old = 0, now = 0;
        REQUIRE(cuMemAlloc(&old, sizes[i]));
        REQUIRE(cuMemsetD8(old, 1, sizes[i]));
        REQUIRE(cuDevicePrimaryCtxReset(0));
        retain_as_current();
        REQUIRE(cuMemAlloc(&now, sizes[i]));
        written += cuMemsetD8(old, 2, sizes[i]) == CUDA_SUCCESS;
        lasts += cuCtxSynchronize() != CUDA_SUCCESS || cuMemsetD8(now, 3, sizes[i]) != CUDA_SUCCESS;
        lasts += cuCtxSynchronize() != CUDA_SUCCESS;
    }
    if (!scene_preloaded() || in_segments())
        written = 0;
    printf("%d errors that last, %d writes to another block\n", lasts, written);
    return lasts || written;
}

/* A thread resets the device over and over. Others retain the primary context, allocate, write and
 * free meanwhile. Their calls may fail, but no error stays. Memory of an ended life that is written
 * in the next one is refused, or is memory of that life. In segments the driver itself gives the
 * same addresses again, so that the pool may give back what such a write still uses. In an arena a
 * thread that was held up for long may still meet one (shim/context/README.md). So one turn of
 * three may have an error. */

enum { TURNS = 3, RESETS = 100, RESETS_REAL = 7, USERS = 3, USES = 20 };

static atomic_bool resets_over;
static atomic_uint lasting;

static bool note_lasting(CUresult rc)
{
    if (rc == CUDA_ERROR_ILLEGAL_ADDRESS || rc == CUDA_ERROR_LAUNCH_FAILED)
        atomic_fetch_add(&lasting, 1);
    return rc == CUDA_SUCCESS;
}

static int use_beside_resets(int index, void *unused)
{
    CUcontext context = NULL;
    if (index == 0) {
        unsigned resets = scene_simulated() ? RESETS : RESETS_REAL;
        struct timespec pause = {.tv_nsec = 2000000};
        for (unsigned i = 0; i < resets && !atomic_load(&lasting); i++) {
            nanosleep(&pause, NULL);
            (void)cuDevicePrimaryCtxReset(0);
            (void)cuDevicePrimaryCtxRetain(&context, 0);
        }
        atomic_store(&resets_over, true);
        return 0;
    }
    while (!atomic_load(&resets_over)) {
        if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
            continue;
        (void)cuCtxSetCurrent(context);
        for (unsigned i = 0; i < USES; i++) {
            CUdeviceptr at = 0;
            if (!note_lasting(cuMemAlloc(&at, (1 + i % 5) * MIB)))
                continue;
            note_lasting(cuMemsetD8(at, 7, 4096));
            note_lasting(cuMemFree(at));
        }
        (void)cuDevicePrimaryCtxRelease(0);
    }
    return 0;
}

ACT(threads_beside_resets_meet_no_error_that_lasts)
{
    REQUIRE(setenv("SIM_HAZARD", "off", 1)); /* the threads use what is no more theirs */
    begin(120);
    int bad_turns = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        atomic_store(&lasting, 0);
        atomic_store(&resets_over, false);
        REQUIRE(scene_threads(USERS + 1, use_beside_resets, NULL));
        bad_turns += atomic_load(&lasting) != 0;
        (void)cuDevicePrimaryCtxReset(0);
    }
    bool lasts = bad_turns > 1 && !in_segments();
    printf("%s\n", lasts ? "errors that last" : "no error lasts");
    return lasts;
}

/* Idle memory is on its way back to the driver when a reset begins, which the driver refuses. The
 * context lives on, and the rest of that memory goes back later. Only the simulated driver refuses.
 */

enum { FLUSH_BLOCKS = 4, FLUSH_BYTES = 64 << 20 };

static int reset_or_flush(int index, void *unused)
{
    if (index == 0)
        return cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS;
    scene_sleep_ms(50); /* for the reset, which waits for the free that is held */
    SIM(simLetGo)("cuMemFreeAsync");
    scene_await_held(1);
    scene_sleep_ms(50); /* for the rest of the flush */
    SIM(simLetGo)("cuDevicePrimaryCtxReset_v2");
    return 0;
}

ACT(a_reset_that_fails_leaves_no_memory_behind)
{
    uint64_t blocks[FLUSH_BLOCKS], before, after = 0;
    begin(60);
    if (!scene_simulated())
        scene_skip("no simulated device");
    primary = retain_as_current();
    uint64_t live = NEW_BLOCK(FLUSH_BYTES);
    before = SIM(simDeviceBytesUsed)(0);
    NEW_BLOCKS(blocks, FLUSH_BLOCKS, FLUSH_BYTES);
    FREE_ALL(blocks, FLUSH_BLOCKS);
    REQUIRE(SIM(simHold)("cuDevicePrimaryCtxReset_v2"));
    REQUIRE(SIM(simFail)("cuDevicePrimaryCtxReset_v2", 1, CUDA_ERROR_UNKNOWN));
    if (scene_preloaded() && in_segments()) {
        REQUIRE(SIM(simHold)("cuMemFreeAsync"));
        REQUIRE(kill(getpid(), SIGUSR1));
        scene_await_held(1);
    }
    int done = scene_threads(2, reset_or_flush, NULL);
    for (int ms = 0; ms < 5000 && (after = SIM(simDeviceBytesUsed)(0)) >= before + FLUSH_BYTES;
         ms += 10) {
        if (scene_preloaded())
            REQUIRE(kill(getpid(), SIGUSR1));
        scene_sleep_ms(10);
    }
    REQUIRE(gpu_memset(live, 1, FLUSH_BYTES));
    bool wrong = scene_wrong_bytes(live, FLUSH_BYTES, 1) != 0;
    printf("the reset %s, memory is left: %d, wrong: %d\n", done ? "works" : "fails",
           after >= before + FLUSH_BYTES, wrong);
    return done || wrong || after >= before + FLUSH_BYTES;
}

/* A context ends while a flush gives its memory back. What another context then gets at those
 * addresses stays that one's: the end waits for the free that is under way, and no free begins
 * beside the end. */

enum ending { RELEASED, RESET, DESTROYED };

static CUcontext ending;

static int end_context(enum ending way)
{
    if (way == DESTROYED)
        return (int)cuCtxDestroy(ending);
    return (int)(way == RESET ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
}

/* The first of four frees goes on, and the release does: the others wait for it. */
static void no_free_begins_beside_a_release(void)
{
    uint64_t full = SIM(simDeviceBytesUsed)(0);
    SIM(simLetGo)("cuMemFree_v2");
    scene_await_held(1);
    scene_sleep_ms(100);
    EXPECT(SIM(simDeviceBytesUsed)(0) == full - FLUSH_BYTES);
    SIM(simLetGo)("cuDevicePrimaryCtxRelease_v2");
}

static int end_or_look(int index, void *context)
{
    enum ending way = *(enum ending *)context;
    uint64_t blocks[FLUSH_BLOCKS];
    size_t wrong = 0;
    CUcontext other = NULL;
    if (index == 0)
        return end_context(way);
    REQUIRE(cuCtxCreate(&other, NULL, 0, 0));
    scene_sleep_ms(100); /* for the end */
    NEW_BLOCKS(blocks, FLUSH_BLOCKS, FLUSH_BYTES);
    for (int i = 0; i < FLUSH_BLOCKS; i++)
        REQUIRE(gpu_memset(blocks[i], 98, FLUSH_BYTES));
    REQUIRE(gpu_sync());
    if (way == RELEASED && scene_preloaded() && in_segments())
        no_free_begins_beside_a_release();
    else
        SIM(simLetGo)("cuMemFree_v2");
    scene_sleep_ms(200); /* for the free, and the rest of the flush */
    for (int i = 0; i < FLUSH_BLOCKS; i++)
        wrong += scene_wrong_bytes(blocks[i], FLUSH_BYTES, 98);
    REQUIRE(cuCtxDestroy(other));
    return (int)wrong;
}

static int flush_beside_end(enum ending way)
{
    uint64_t blocks[FLUSH_BLOCKS];
    begin(60);
    if (!scene_simulated())
        scene_skip("no simulated device");
    ending = way == DESTROYED ? NEW_CONTEXT() : retain_as_current();
    NEW_BLOCKS(blocks, FLUSH_BLOCKS, FLUSH_BYTES);
    FREE_ALL(blocks, FLUSH_BLOCKS);
    REQUIRE(gpu_sync());
    if (scene_preloaded() && in_segments()) {
        REQUIRE(SIM(simFail)("cuMemFreeAsync", 1, CUDA_ERROR_NOT_SUPPORTED)); /* cuMemFree then */
        REQUIRE(SIM(simHold)("cuMemFree_v2"));
        REQUIRE(kill(getpid(), SIGUSR1));
        scene_await_held(1);
        if (way == RELEASED)
            REQUIRE(SIM(simHold)("cuDevicePrimaryCtxRelease_v2"));
    }
    int wrong = scene_threads(2, end_or_look, &way);
    printf("%d wrong bytes\n", wrong);
    return wrong != 0;
}

ACT_IS(ACT(a_free_under_way_takes_nothing_behind_a_release), flush_beside_end(RELEASED))
ACT_IS(ACT(a_free_under_way_takes_nothing_behind_a_reset), flush_beside_end(RESET))
ACT_IS(ACT(a_free_under_way_takes_nothing_behind_a_destruction), flush_beside_end(DESTROYED))
