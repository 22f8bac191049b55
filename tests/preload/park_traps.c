/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Moments in which a park would be wrong: a call that is on its way to the driver, work that runs
 * on although its call has returned, memory that others learn of, a network card. Most need the
 * simulated driver, which holds calls at such a moment.
 */
#include "tests/preload/park_world.h"

#include "tests/preload/ipc_peer.h"

#include <sched.h>
#include <sys/syscall.h>

static int begin_simulated(void)
{
    begin(1);
    return scene_simulated() ? 0 : SCENE_SKIP;
}

/* ---- Calls on their way */

static void *fill_b(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(gpu_fill(b, WORDS, 8, stream));
    return NULL;
}

ACT(a_thread_on_its_way_to_the_driver_refuses)
{
    if (begin_simulated())
        return SCENE_SKIP;
    REQUIRE(SIM(simHold)("cuLaunchKernel"));
    pthread_t thread = NEW_THREAD(fill_b, NULL);
    scene_await_held(1);
    expect_refused("a thread is inside a call of the driver");
    SIM(simLetGo)("cuLaunchKernel");
    REQUIRE(pthread_join(thread, NULL));
    EXPECT(scene_wrong_words(b, WORDS, 8, stream) == 0);
    park();
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 8, stream);
}

static void *spin(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(gpu_spin(1000, NULL));
    return NULL;
}

static _Atomic uint64_t first_block;

enum { LAUNCHES = 300 };

static void *fill_from_the_first_moment(void *unused)
{
    uint64_t block;
    REQUIRE(cuCtxSetCurrent(context));
    while (!(block = atomic_load(&first_block)))
        ;
    for (uint32_t i = 1; i <= LAUNCHES; i++)
        REQUIRE(gpu_fill(block, WORDS, i, NULL));
    return NULL;
}

/* One thread's launch has begun before there is a pool. It knows no pool memory. Another launches
 * from the pool's first moment on. */
static int play_first_moments(void)
{
    scene_start(1, 60);
    context = CURRENT_CONTEXT();
    bool held = scene_simulated();
    if (held)
        REQUIRE(SIM(simHold)("cuLaunchKernel"));
    pthread_t early = NEW_THREAD(spin, NULL);
    if (held)
        scene_await_held(1);
    pthread_t next = NEW_THREAD(fill_from_the_first_moment, NULL);
    uint64_t block = NEW_BLOCK(BYTES);
    REQUIRE(gpu_memset(block, 0, BYTES));
    REQUIRE(gpu_sync());
    if (held)
        (void)asker_ask("park wait=20"); /* whether the early one is seen or not */
    atomic_store(&first_block, block);
    if (held) {
        scene_await_held(2);
        expect_refused("a thread is inside a call of the driver");
        SIM(simLetGo)("cuLaunchKernel");
    }
    for (int i = 0; i < 5; i++)
        (void)asker_ask("park wait=5");
    REQUIRE(pthread_join(early, NULL));
    REQUIRE(pthread_join(next, NULL));
    return scene_wrong_words(block, WORDS, LAUNCHES, NULL) != 0;
}

ACT(launches_of_the_first_moments_are_drained_or_harmless)
{
    if (getenv("PLAYS_FIRST_MOMENTS"))
        return play_first_moments();
    for (int i = 0; i < 4; i++)
        EXPECT(scene_again("PLAYS_FIRST_MOMENTS", "1") == 0);
    return 0;
}

/* ---- Work whose call has returned */

ACT(an_upload_that_runs_on_refuses)
{
    if (begin_simulated())
        return SCENE_SKIP;
    for (size_t i = 0; i < WORDS; i++)
        here[i] = 77;
    REQUIRE(gpu_put(b, here, BYTES));
    memset(here, 0, BYTES); /* the driver has read it */
    expect_refused("GPU work still runs");
    REQUIRE(gpu_sync());
    park();
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 77, stream);
}

ACT(a_graph_that_a_kernel_launches_refuses)
{
    CUgraph graph;
    CUgraphExec exec;
    if (begin_simulated())
        return SCENE_SKIP;
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_spin_fill(b, WORDS, 31, 3000 * MS_NS, stream));
    graph = END_CAPTURE(stream);
    exec = NEW_EXEC(graph);
    REQUIRE(SIM(simDeviceLaunch)(exec, stream));
    expect_refused("GPU work still runs");
    REQUIRE(gpu_sync());
    park();
    int wrong = wrong_a() != 0 || scene_wrong_words(b, WORDS, 31, stream);
    return wrong || gpu_graph_destroy(graph, exec);
}

ACT(a_stream_that_waits_for_a_value_refuses)
{
    uint32_t *word;
    begin(1);
    REQUIRE(gpu_host_alloc((void **)&word, 4));
    *word = 0;
    int rc =
        (int)cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        return SCENE_SKIP;
    REQUIRE(rc);
    REQUIRE(gpu_fill(b, WORDS, 32, stream));
    expect_refused("GPU work still runs");
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    REQUIRE(gpu_stream_sync(stream));
    park();
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 32, stream);
}

static void *ask_for_a_park(void *code)
{
    *(int *)code = asker_ask("park wait=2000");
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void CUDA_CB need_the_lock(void *done)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    atomic_store((atomic_bool *)done, true);
}

/* As with Python's lock: the stream waits for the thread, which waits at the gate of the park,
 * which waits for the stream. *code: the answer to the park. */
static int use_while_a_host_function_waits(unsigned ms, int *code)
{
    static atomic_bool done;
    atomic_store(&done, false);
    pthread_mutex_lock(&lock);
    int rc = (int)cuLaunchHostFunc(stream, need_the_lock, &done);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        return SCENE_SKIP;
    REQUIRE(rc);
    pthread_t asker = NEW_THREAD(ask_for_a_park, code);
    scene_sleep_ms(ms);
    uint64_t start_ns = scene_now_ns();
    REQUIRE(gpu_fill(b, WORDS, 9, NULL));
    EXPECT(scene_now_ns() - start_ns < 1500 * MS_NS && !atomic_load(&done));
    pthread_mutex_unlock(&lock);
    REQUIRE(pthread_join(asker, NULL));
    REQUIRE(gpu_sync());
    EXPECT(atomic_load(&done));
    return 0;
}

/* Where the machine is busy, the use may come before the park begins: then it is parked after it.
 */
ACT(a_host_function_that_needs_a_lock_ends)
{
    int code = 0;
    begin(1);
    for (unsigned ms = 100; ms <= 1600; ms *= 2) {
        int rc = use_while_a_host_function_waits(ms, &code);
        if (rc)
            return rc;
        if (code != PAGE_REPLY_DONE)
            break;
    }
    expect_code(code, PAGE_REPLY_REFUSED);
    park();
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 9, NULL);
}

/* ---- Memory that others know of */

static atomic_int arrival_tid;
static atomic_bool is_through;

static void *export_b(void *handle)
{
    REQUIRE(cuCtxSetCurrent(context));
    atomic_store(&arrival_tid, (int)syscall(SYS_gettid));
    REQUIRE(gpu_ipc_export(handle, b));
    atomic_store(&is_through, true);
    return NULL;
}

/* Until it sleeps at the gate, or is through. */
static void await_arrival(void)
{
    while (!atomic_load(&arrival_tid))
        scene_sleep_ms(1);
    for (int seen = 0; seen < 3 && !atomic_load(&is_through); scene_sleep_ms(2))
        seen = scene_thread_state(atomic_load(&arrival_tid)) == 'S' ? seen + 1 : 0;
}

ACT(an_export_cancels_the_copies)
{
    CUipcMemHandle handle;
    int code = 0;
    if (begin_simulated())
        return SCENE_SKIP;
    if (asker_page())
        REQUIRE(SIM(simHold)("cuMemcpyDtoHAsync_v2"));
    pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
    scene_await_held(asker_page() != NULL);
    pthread_t exporter = NEW_THREAD(export_b, &handle);
    await_arrival();
    SIM(simLetGo)("cuMemcpyDtoHAsync_v2");
    REQUIRE(pthread_join(exporter, NULL));
    REQUIRE(pthread_join(asker, NULL));
    expect_code(code, PAGE_REPLY_REFUSED);
    expect_parked(false);
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 7, stream);
}

static void *fill_behind_the_gate(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    atomic_store(&arrival_tid, (int)syscall(SYS_gettid));
    REQUIRE(gpu_fill(b, WORDS, 8, NULL));
    atomic_store(&is_through, true);
    return NULL;
}

/* However much is left, it is not copied any more: a use waits for the pieces of 4 MiB that threads
 * have on their way. */
ACT(a_use_waits_only_for_copies_that_have_begun)
{
    enum { PIECES = 64, LANES = 8 };
    int code = 0;
    if (begin_simulated())
        return SCENE_SKIP;
    uint64_t big = NEW_FILLED(PIECES * MIB, 5, NULL);
    REQUIRE(gpu_sync());
    if (asker_page())
        REQUIRE(SIM(simHold)("cuMemcpyDtoHAsync_v2"));
    uint64_t before = SIM(simCallCount)("cuMemcpyDtoHAsync_v2");
    pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
    scene_await_held(asker_page() != NULL);
    pthread_t user = NEW_THREAD(fill_behind_the_gate, NULL);
    await_arrival();
    SIM(simLetGo)("cuMemcpyDtoHAsync_v2");
    REQUIRE(pthread_join(user, NULL));
    EXPECT(SIM(simCallCount)("cuMemcpyDtoHAsync_v2") - before <= 2 * LANES);
    REQUIRE(pthread_join(asker, NULL));
    expect_code(code, PAGE_REPLY_REFUSED);
    expect_parked(false);
    return wrong_a() != 0 || scene_wrong_words(big, PIECES * MIB, 5, stream) ||
           scene_wrong_words(b, WORDS, 8, stream);
}

static int get_tokens(uint64_t block)
{
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    return (int)cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block);
}

static int get_dma_buf(uint64_t block)
{
    int fd = -1;
    int rc = (int)cuMemGetHandleForAddressRange(&fd, block, 32 * MIB,
                                                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return rc || close(fd);
}

static int export(uint64_t block)
{
    CUipcMemHandle handle;
    return gpu_ipc_export(&handle, block);
}

static uint64_t exposed_bytes(void)
{
    const char *found = strstr(asker_reply(), "{\"what\":\"exposed\",\"bytes\":");
    return found ? strtoull(strrchr(strncpy((char[64]){0}, found, 63), ':') + 1, NULL, 10) : 0;
}

static bool has_memops(uint64_t block)
{
    unsigned has = 0;
    REQUIRE(cuPointerGetAttribute(&has, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    return has && (!scene_simulated() || SIM(simSyncMemops)(block) == 1);
}

ACT(what_others_know_of_keeps_its_memory)
{
    static int (*const tell[])(uint64_t block) = {export, get_tokens, get_dma_buf};
    enum { WAYS = sizeof tell / sizeof *tell };
    uint64_t blocks[WAYS], exposed = 0;
    begin(1);
    NEW_BLOCKS(blocks, WAYS, 32 * MIB);
    for (uint32_t i = 0; i < WAYS; i++)
        REQUIRE(gpu_fill(blocks[i], 8 * MIB, i + 1, NULL));
    REQUIRE(gpu_sync());
    for (int i = 0; i < WAYS; i++) {
        if (tell[i](blocks[i]))
            return scene_simulated() ? 1 : SCENE_SKIP;
        park_as("park wait=2000", PAGE_REPLY_PARTLY);
        exposed += 32 * MIB;
        EXPECT(!asker_page() || exposed_bytes() >= exposed);
        EXPECT(wrong_a() == 0);
    }
    for (uint32_t i = 0; i < WAYS; i++)
        EXPECT(scene_wrong_words(blocks[i], 8 * MIB, i + 1, NULL) == 0);
    EXPECT(has_memops(blocks[1])); /* by the question for tokens */
    return 0;
}

/* Only memory of segments can have the attribute by itself. An arena's would lack it once it is
 * created anew. */
ACT(memory_that_synchronises_copies_stays)
{
    unsigned on = 1;
    if (!getenv("GPUCACHE_BACKING"))
        return scene_again("GPUCACHE_BACKING", "segment");
    begin(1);
    REQUIRE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b));
    expect_refused("the memory is not in arenas");
    return !has_memops(b) || wrong_a() || scene_wrong_words(b, WORDS, 7, stream);
}

/* Two processes share a buffer and work on it in turn, as NCCL's ranks do. One sleeps meanwhile. */
ACT(a_sleeping_rank_keeps_its_buffer)
{
    struct ipc_peer peer = ipc_peer_fork();
    struct ipc_message m = {.order = IPC_OPEN, .size_bytes = BYTES, .byte = 7}, said;
    int failures = 0;
    begin(1);
    ipc_export(&m.handle, b);
    REQUIRE(gpu_memset(b, 7, BYTES));
    REQUIRE(gpu_sync());
    m = ipc_peer_do(&peer, m);
    EXPECT(!m.rc && !m.wrong);
    for (unsigned char round = 1; round <= 4; round++) {
        REQUIRE(gpu_memset(b, round, BYTES));
        REQUIRE(gpu_sync());
        park_as("park wait=2000", PAGE_REPLY_PARTLY);
        expect_parked(true);
        m.byte = round;
        said = ipc_peer_then(&peer, m, IPC_LOOK);
        failures += said.rc || said.wrong;
        m.byte = (unsigned char)(100 + round);
        failures += ipc_peer_then(&peer, m, IPC_WRITE).rc != 0;
        expect_parked(true);
        failures += scene_wrong_bytes(b, BYTES, (unsigned char)(100 + round)) != 0;
        failures += wrong_a() != 0;
    }
    return failures + (ipc_peer_end(&peer) != 0);
}

/* ---- Network cards */

static atomic_bool has_card;

/* In place of the C library's: /proc/self/fd has the file of a card. */
ssize_t readlinkat(int folder, const char *name, char *target, size_t size_bytes)
{
    static const char card[] = "/dev/infiniband/uverbs0";
    if (!atomic_load(&has_card) || size_bytes < sizeof card)
        return syscall(SYS_readlinkat, folder, name, target, size_bytes);
    memcpy(target, card, sizeof card - 1);
    return sizeof card - 1;
}

/* A card's registration makes no call of the driver. An unmap would make it stale. */
ACT(an_open_network_card_refuses)
{
    begin(1);
    atomic_store(&has_card, true);
    expect_refused("memory may be registered with a network card");
    atomic_store(&has_card, false);
    park();
    atomic_store(&has_card, true);
    EXPECT(wrong_a() == 0);
    expect_refused("memory may be registered with a network card");
    return wrong_a() != 0;
}

/* ---- Workers */

/* Threads have the processors of those that make them, so the library's have one. */
static void keep_one_processor(void)
{
    cpu_set_t set, one;
    REQUIRE(sched_getaffinity(0, sizeof set, &set));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &set))
            CPU_SET(i, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one));
}

ACT(without_workers_the_bytes_are_right)
{
    int code = 0;
    keep_one_processor();
    if (begin_simulated())
        return SCENE_SKIP;
    uint64_t big = NEW_BLOCK(64 * MIB);
    REQUIRE(gpu_fill(big, 16 * MIB, 5, NULL));
    REQUIRE(gpu_sync());
    if (asker_page())
        REQUIRE(SIM(simHold)("cuMemcpyDtoHAsync_v2"));
    pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
    scene_await_held(asker_page() != NULL);
    scene_sleep_ms(50);
    EXPECT(SIM(simHeld)() == (asker_page() != NULL)); /* the park thread alone */
    SIM(simLetGo)("cuMemcpyDtoHAsync_v2");
    REQUIRE(pthread_join(asker, NULL));
    expect_code(code, PAGE_REPLY_DONE);
    return wrong_a() != 0 || scene_wrong_words(big, 16 * MIB, 5, NULL);
}

/* The thread of all parks is there since the first one, and the workers have ended with the wake.
 */
ACT(a_process_that_gets_no_thread_parks_again)
{
    begin(1);
    uint64_t big = NEW_BLOCK(64 * MIB);
    REQUIRE(gpu_fill(big, 16 * MIB, 5, NULL));
    REQUIRE(gpu_sync());
    park();
    wake();
    if (!scene_refuse(SYS_clone, SYS_clone3, EAGAIN))
        return SCENE_SKIP;
    for (int i = 0; i < 2; i++) {
        park();
        EXPECT(wrong_a() == 0 && scene_wrong_words(big, 16 * MIB, 5, NULL) == 0);
    }
    return 0;
}
