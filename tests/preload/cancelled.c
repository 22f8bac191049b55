/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads that are cancelled in the middle of calls: those that come after them go on as ever, and
 * the process ends. Calls of the simulated driver are cancellation points as SIM_CANCEL says. */
#include "tests/preload/ipc_peer.h"
#include "tests/preload/scene.h"

#include <sched.h>

/* Threads are cancelled in the middle of allocations, frees, flushes, captures and contexts of
 * their own. The first one makes the process's first allocation. They cancel themselves just before
 * a call, and others cancel them at any moment. Threads that come after them allocate, capture and
 * flush as ever, no memory is lost, and the process ends. */

enum { THREADS = 4, ROUNDS = 30, OPS = 4, OPS_WITH_CONTEXTS = 5 };

static const size_t sizes[] = {512, 40 * KIB, 300 * KIB, 3 * MIB, 40 * MIB, 130 * MIB};
static CUcontext primary;

/* What a thread has when it is cancelled. */
struct life {
    uint64_t random;
    unsigned ops, calls_left; /* before it cancels itself; 0: it waits for others */
    CUdeviceptr block, opened;
    CUstream stream;
    CUcontext context;
};

static uint64_t draw(struct life *l)
{
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return l->random >> 33;
}

static void drop_block(struct life *l)
{
    if (l->block)
        cuMemFree(l->block);
    l->block = 0;
}

/* Its capture, if there is one, goes with it. */
static void drop_stream(struct life *l)
{
    if (l->stream)
        cuStreamDestroy(l->stream);
    l->stream = NULL;
}

/* Its memory goes with it. */
static void drop_context(struct life *l)
{
    CUcontext context = l->context;
    if (!context)
        return;
    l->block = 0;
    cuCtxDestroy(context);
    l->context = NULL;
    cuCtxSetCurrent(primary);
}

/* Between two calls a thread may end itself; the point is the next call. */
static void maybe_cancel(struct life *l)
{
    if (l->calls_left && --l->calls_left == 0)
        pthread_cancel(pthread_self());
}

static void allocate(struct life *l)
{
    maybe_cancel(l);
    if (cuMemAlloc(&l->block, sizes[draw(l) % 6]) != CUDA_SUCCESS)
        l->block = 0;
    else
        cuMemsetD8(l->block, 1, 512);
    maybe_cancel(l);
    drop_block(l);
}

static void flush(struct life *l)
{
    setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
    allocate(l);
}

static void allocate_pitch(struct life *l)
{
    size_t pitch;
    maybe_cancel(l);
    if (cuMemAllocPitch(&l->block, &pitch, 1000, 100, 4) != CUDA_SUCCESS)
        l->block = 0;
    maybe_cancel(l);
    drop_block(l);
}

static void capture(struct life *l)
{
    CUgraph graph = NULL;
    if (cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return;
    maybe_cancel(l);
    if (cuStreamBeginCapture(l->stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS) {
        maybe_cancel(l);
        if (cuStreamEndCapture(l->stream, &graph) == CUDA_SUCCESS)
            cuGraphDestroy(graph);
    }
    maybe_cancel(l);
    drop_stream(l);
}

static void live_elsewhere(struct life *l)
{
    if (cuCtxCreate(&l->context, NULL, 0, 0) != CUDA_SUCCESS) {
        l->context = NULL;
        return;
    }
    allocate(l);
    maybe_cancel(l);
    drop_context(l);
}

static void clean(void *life)
{
    drop_stream(life);
    drop_context(life);
    drop_block(life);
}

static void *live(void *life)
{
    struct life *l = life;
    pthread_cleanup_push(clean, l);
    cuCtxSetCurrent(primary);
    for (;;) {
        static void (*const ops[])(struct life *) = {allocate, flush, allocate_pitch, capture,
                                                     live_elsewhere};
        ops[draw(l) % l->ops](l);
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void sleep_us(unsigned us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

/* Returns how many were not cancelled. */
static int cancel_some(unsigned round, unsigned ops, void *(*body)(void *life))
{
    pthread_t threads[THREADS];
    struct life lives[THREADS];
    int others = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        bool by_itself = i % 2 == 0;
        lives[i] = (struct life){.random = round * THREADS + i + 1, .ops = ops};
        lives[i].calls_left = by_itself ? round % 7 + 1 : 0;
        REQUIRE(pthread_create(&threads[i], NULL, body, &lives[i]));
    }
    sleep_us(round * 61 % 2000);
    for (unsigned i = 0; i < THREADS; i++) {
        void *end = NULL;
        if (i % 2)
            REQUIRE(pthread_cancel(threads[i]));
        REQUIRE(pthread_join(threads[i], &end));
        others += end != PTHREAD_CANCELED;
    }
    return others;
}

/* What must go as ever. Of a large block the first and the last bytes are written. */
enum { END_BYTES = 64 * KIB };

static void use(void)
{
    for (int i = 0; i < 6; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]);
        size_t end = sizes[i] < END_BYTES ? sizes[i] : END_BYTES;
        REQUIRE(gpu_memset(block, i, end));
        REQUIRE(gpu_memset(block + sizes[i] - end, i, end));
        REQUIRE(gpu_sync());
        REQUIRE(gpu_free(block));
    }
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
    REQUIRE(gpu_stream_destroy(stream));
}

ACT(threads_that_allocate_may_be_cancelled)
{
    int others = 0;
    scene_start(1, 60);
    /* Bare on an H100, driver 580: two runs of three abort, one hangs. */
    if (!scene_simulated())
        scene_skip("a real driver does not survive this");
    primary = CURRENT_CONTEXT();
    size_t before = FREE_BYTES();
    others += cancel_some(0, 1, live);
    use();
    for (unsigned round = 1; round < 2 * ROUNDS; round++) {
        others += cancel_some(round, round < ROUNDS ? OPS : OPS_WITH_CONTEXTS, live);
        if (round % 8 == 0)
            use();
    }
    use();
    size_t after = FREE_BYTES();
    printf("%d ended otherwise, memory %s\n", others, after + 4 * MIB >= before ? "kept" : "lost");
    return 0;
}

/* Threads are cancelled while they give handles out, open them and close them, the first of each
 * process too. Later threads do the same and find their bytes, and both processes end. */

enum { SHARER_ROUNDS = 60 };

static const size_t size_bytes = 300 * KIB;
static uint64_t shared;
static CUipcMemHandle handle;

static void close_opened(void *sharer)
{
    struct life *l = sharer;
    if (l->opened)
        cuIpcCloseMemHandle(l->opened);
}

static void *open_and_close(void *sharer)
{
    struct life *l = sharer;
    pthread_cleanup_push(close_opened, l);
    cuCtxSetCurrent(primary);
    for (;;) {
        maybe_cancel(l);
        if (cuIpcOpenMemHandle(&l->opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
            CUDA_SUCCESS)
            l->opened = 0;
        maybe_cancel(l);
        if (l->opened)
            cuIpcCloseMemHandle(l->opened);
        l->opened = 0;
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void *give_out(void *sharer)
{
    CUipcMemHandle again;
    cuCtxSetCurrent(primary);
    for (;;) {
        maybe_cancel(sharer);
        cuIpcGetMemHandle(&again, shared);
        pthread_testcancel();
    }
    return NULL;
}

static int import(int from, int to)
{
    uint64_t opened = 0;
    int others = 0;
    EXPECT(read(from, &handle, sizeof handle) == sizeof handle);
    scene_start(1, 60);
    primary = CURRENT_CONTEXT();
    for (unsigned round = 0; round < SHARER_ROUNDS; round++) {
        others += cancel_some(round, 0, open_and_close);
        REQUIRE(gpu_ipc_open(&opened, handle));
        others += scene_wrong_bytes(opened, size_bytes, 7) != 0;
        REQUIRE(gpu_ipc_close(opened));
    }
    printf("importer: %d wrong\n", others);
    fflush(stdout);
    return to < 0;
}

ACT(threads_that_share_may_be_cancelled)
{
    int others = 0;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(1, 60);
    primary = CURRENT_CONTEXT();
    shared = NEW_BLOCK(size_bytes);
    REQUIRE(gpu_memset(shared, 7, size_bytes));
    REQUIRE(gpu_sync());
    for (unsigned round = 0; round < SHARER_ROUNDS; round++)
        others += cancel_some(round, 0, give_out);
    ipc_export(&handle, shared);
    EXPECT(write(importer.to, &handle, sizeof handle) == sizeof handle);
    printf("importer ended with %d\n", ipc_peer_join(&importer));
    printf("exporter: %d wrong\n", others);
    return 0;
}

/* A thread asks for memory that was freed while a kernel still writes it, and is cancelled in its
 * wait. It ends behind the call, as it does where the driver is no cancellation point. */

/* Each look of a thread at the simulated driver lets 1 us pass, so it looks for some 50 ms. */
enum { WAITING_ROUNDS = 4, KERNEL_NS = 300000, WAIT_MS = 10 };

static size_t half_bytes;

struct waiting {
    uint64_t block;
    bool inside, ended_inside;
};

static void end_waiting(void *waiting)
{
    struct waiting *w = waiting;
    w->ended_inside = w->inside;
    if (!w->inside)
        REQUIRE(gpu_free(w->block));
}

static void *wait_for_memory(void *waiting)
{
    struct waiting *w = waiting;
    pthread_cleanup_push(end_waiting, w);
    REQUIRE(cuCtxSetCurrent(primary));
    w->inside = true;
    REQUIRE(gpu_malloc(&w->block, half_bytes));
    w->inside = false;
    /* The thread sanitizer sees no locks of a thread that was cancelled in a call that sleeps. */
    for (;; sched_yield())
        pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

ACT(a_wait_for_memory_ends_no_thread)
{
    int inside = 0;
    CUstream streams[2];
    /* Else the GPU waits for the kernel, not the thread. */
    REQUIRE(setenv("GPUCACHE_REUSE", "wait", 1));
    scene_start(1, 60);
    if (!scene_simulated() || getenv("SIM_CANCEL") != NULL)
        return 0; /* there the call itself may be a cancellation point */
    primary = CURRENT_CONTEXT();
    for (int i = 0; i < 2; i++) {
        streams[i] = NEW_STREAM(false);
        REQUIRE(gpu_spin(1000, streams[i]));
    }
    half_bytes = FREE_BYTES();
    half_bytes = half_bytes / 8 * 5;
    for (int round = 0; round < WAITING_ROUNDS; round++) {
        struct waiting w = {0};
        REQUIRE(gpu_malloc(&w.block, half_bytes));
        REQUIRE(gpu_spin_fill(w.block, 1024, 1, KERNEL_NS, streams[round % 2]));
        REQUIRE(gpu_free(w.block));
        pthread_t thread = NEW_THREAD(wait_for_memory, &w);
        scene_sleep_ms(WAIT_MS);
        REQUIRE(pthread_cancel(thread));
        REQUIRE(pthread_join(thread, NULL));
        inside += w.ended_inside;
    }
    printf("%d ended inside a call\n", inside);
    return inside;
}
