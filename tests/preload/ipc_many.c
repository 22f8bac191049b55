/* SPDX-License-Identifier: BSD-2-Clause */
/* Handles of several processes at once. They are opened beside memory that comes and goes, by
 * threads that signals interrupt, and in captures. Events order the work of the processes. */
#include "tests/preload/ending_contexts.h"
#include "tests/preload/ipc_peer.h"
#include "tests/preload/scene.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

/* Several processes open blocks of one exporter at the same time, each with several threads. The
 * exporter's threads allocate, free, flush their caches and share anew meanwhile. Every handle
 * shows its own block, or nothing once the block is gone. */

enum { PEERS = 3, ROUNDS = 12, WORKERS = 2 };

static struct ipc_peer importers[PEERS];
static atomic_bool stop;

/* What shares no memory makes it move and go. */
static int churn(int index, void *unused)
{
    uint64_t blocks[24] = {0};
    uint64_t random = (uint64_t)index + 1;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&stop)) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t *b = &blocks[(random >> 33) % 24];
        if (*b)
            REQUIRE(gpu_free(*b));
        *b = 0;
        REQUIRE(gpu_malloc(b, (size_t)1 << (9 + (random >> 40) % 15)));
        if ((random >> 50) % 64 == 0)
            setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
    }
    for (int i = 0; i < 24; i++)
        if (blocks[i])
            REQUIRE(gpu_free(blocks[i]));
    return 0;
}

/* One thread of the exporter for each peer. */
static int exchange(int index, void *unused)
{
    static const size_t sizes[] = {700, 40 * KIB, 500 * KIB, 2 * MIB, 9 * MIB};
    int wrong = 0;
    REQUIRE(gpu_open(0));
    for (int round = 0; round < ROUNDS; round++) {
        struct ipc_message m = {.order = IPC_OPEN,
                                .size_bytes = sizes[round % 5],
                                .byte = (unsigned char)(index * ROUNDS + round + 1)};
        uint64_t block = ipc_share(&m.handle, m.size_bytes, m.byte);
        struct ipc_message opened = ipc_peer_do(&importers[index], m);
        wrong += opened.rc != 0 || opened.wrong != 0;
        wrong += ipc_peer_then(&importers[index], opened, IPC_CLOSE).rc != 0;
        wrong += scene_wrong_bytes(block, m.size_bytes, m.byte) != 0;
        REQUIRE(gpu_free(block));
    }
    return wrong;
}

static int either(int index, void *context)
{
    if (index >= PEERS)
        return churn(index, context);
    int wrong = exchange(index, context);
    if (atomic_fetch_add((atomic_int *)context, 1) == PEERS - 1)
        atomic_store(&stop, true);
    return wrong;
}

ACT(every_handle_shows_its_own_block)
{
    atomic_int done = 0;
    scene_watchdog(100);
    for (int i = 0; i < PEERS; i++)
        importers[i] = ipc_peer_fork();
    scene_start(1, 100);
    int wrong = scene_threads(PEERS + WORKERS, either, &done);
    for (int i = 0; i < PEERS; i++)
        wrong += ipc_peer_end(&importers[i]) != 0;
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

/* Many processes open a block of one exporter at once, and its driver takes 0.4 s for each of them.
 * All of them open it: who waits asks no second time, and waits longer than the exporter needs. */

enum { MANY = 12 };

static int open_once(int index, void *peers)
{
    const struct ipc_peer *peer = (const struct ipc_peer *)peers + index;
    struct ipc_message m = {
        .order = IPC_OPEN, .size_bytes = 700, .byte = (unsigned char)(index + 1)};
    REQUIRE(gpu_open(0));
    ipc_share(&m.handle, m.size_bytes, m.byte);
    m = ipc_peer_do(peer, m);
    return m.rc != 0 || m.wrong != 0;
}

ACT(a_slow_exporter_has_its_time)
{
    struct ipc_peer peers[MANY];
    int wrong = 0;
    scene_watchdog(100);
    if (scene_simulated()) {
        REQUIRE(setenv("SIM_REALTIME", "1", 1));
        REQUIRE(setenv("SIM_COST_cuMemExportToShareableHandle", "400000000", 1));
    }
    for (int i = 0; i < MANY; i++)
        peers[i] = ipc_peer_fork();
    scene_start(1, 100);
    wrong += scene_threads(MANY, open_once, peers);
    for (int i = 0; i < MANY; i++)
        wrong += ipc_peer_end(&peers[i]) != 0;
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

/* The threads of one process open and close the same handles at the same time, while signals
 * interrupt the process all the time. They also do so in the middle of stream captures of every
 * kind. Each thread finds its bytes, and no capture is spoilt. A graph that uses what was opened in
 * its capture works. What is closed in a capture is no device memory any more. */

enum { HANDLES = 3, THREADS = 4, OPENS = 40 };

static const size_t sizes[HANDLES] = {5 * MIB, 1200, 200 * KIB};

/* Two threads that open one handle at once: bare, the driver refuses one of them now and then with
 * CUDA_ERROR_ALREADY_MAPPED (seen twice, driver 580). With the library, never. */
static uint64_t open_beside_others(CUipcMemHandle handle)
{
    uint64_t opened = 0;
    int rc;
    do {
        rc = gpu_ipc_open(&opened, handle);
    } while (rc == CUDA_ERROR_ALREADY_MAPPED && !scene_preloaded());
    REQUIRE(rc);
    return opened;
}

static int open_and_close(int index, void *context)
{
    const CUipcMemHandle *handles = context;
    int wrong = 0;
    REQUIRE(gpu_open(0));
    for (int round = 0; round < OPENS; round++) {
        int which = (index + round) % HANDLES;
        uint64_t first = open_beside_others(handles[which]);
        uint64_t second = open_beside_others(handles[which]);
        wrong += first != second || scene_wrong_bytes(first, 1000, (unsigned char)(which + 1)) != 0;
        REQUIRE(gpu_ipc_close(first));
        wrong +=
            scene_wrong_bytes(second + sizes[which] - 100, 100, (unsigned char)(which + 1)) != 0;
        REQUIRE(gpu_ipc_close(second));
    }
    return wrong;
}

static uint32_t capture(const CUipcMemHandle *handles, CUstreamCaptureMode mode,
                        uint64_t errors_ptr)
{
    uint64_t before = 0, inside = 0, base = 0;
    size_t size_bytes = 0;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint32_t errors = 1;
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_ipc_open(&before, handles[2]));
    REQUIRE(gpu_capture_begin(stream, mode));
    REQUIRE(gpu_memset_async(errors_ptr, 0, 4, stream));
    REQUIRE(gpu_ipc_open(&inside, handles[0]));
    REQUIRE(gpu_check(inside, sizes[0] / 4, 0x01010101, errors_ptr, stream));
    REQUIRE(gpu_ipc_close(before));
    bool is_device = false;
    int device = -1, kind = gpu_pointer_is_device(&is_device, &device, before);
    printf("closed: kind %d, range %d, ", kind, gpu_address_range(&base, &size_bytes, before));
    printf("again %d; ", gpu_ipc_close(before));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
    REQUIRE(gpu_graph_launch(exec, stream));
    REQUIRE(gpu_get_async(&errors, errors_ptr, 4, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_ipc_close(inside));
    REQUIRE(gpu_stream_destroy(stream));
    return errors;
}

static void *set_later(void *flag)
{
    scene_sleep_ms(400);
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Closed in a capture, while a kernel runs that goes on after it. */
static void close_behind_work(const CUipcMemHandle *handle)
{
    uint64_t opened = 0;
    CUgraph graph = NULL;
    void *flag = NULL;
    pthread_t thread;
    int answered = 0, device = -1;
    CUstream stream = NEW_STREAM(false), busy = NEW_STREAM(false);
    REQUIRE(gpu_host_alloc(&flag, 4096));
    __atomic_store_n((uint32_t *)flag, 0, __ATOMIC_RELEASE);
    REQUIRE(gpu_ipc_open(&opened, *handle));
    REQUIRE(gpu_wait_flag((uint64_t)(uintptr_t)flag, busy));
    REQUIRE(pthread_create(&thread, NULL, set_later, flag));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_ipc_close(opened)); /* natively the driver may wait for the kernel here */
    REQUIRE(gpu_capture_end(stream, &graph));
    for (int i = 0; i < 40; i++) {
        bool is_device = false;
        answered += gpu_pointer_is_device(&is_device, &device, opened) == 0;
        scene_sleep_ms(5);
    }
    printf("closed behind work: %d answers\n", answered);
    REQUIRE(pthread_join(thread, NULL));
    REQUIRE(gpu_stream_sync(busy));
    REQUIRE(gpu_graph_destroy(graph, NULL));
    REQUIRE(gpu_host_free(flag));
    REQUIRE(gpu_stream_destroy(stream));
    REQUIRE(gpu_stream_destroy(busy));
}

static void ignore(int signal_number)
{
}

/* A thousand signals a second, which interrupt calls. */
static void start_signals(void)
{
    timer_t timer;
    struct sigaction action = {.sa_handler = ignore};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct itimerspec every = {{0, 1000000}, {0, 1000000}};
    REQUIRE(sigaction(SIGUSR2, &action, NULL));
    REQUIRE(timer_create(CLOCK_MONOTONIC, &event, &timer));
    REQUIRE(timer_settime(timer, 0, &every, NULL));
}

static int open_in_threads(int from, int to)
{
    CUipcMemHandle handles[HANDLES];
    uint64_t ours = 0;
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    start_signals();
    printf("%d wrong in threads\n", scene_threads(THREADS, open_and_close, handles));
    uint64_t errors_ptr = NEW_BLOCK(4);
    /* A real driver loads a kernel at its first launch; that is no part of a capture. */
    REQUIRE(gpu_check(errors_ptr, 1, 0, errors_ptr, NULL));
    REQUIRE(gpu_sync());
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++)
        printf("capture %d: %u wrong words\n", mode,
               capture(handles, (CUstreamCaptureMode)mode, errors_ptr));
    close_behind_work(&handles[2]);
    printf("opened after it: %d", gpu_ipc_open(&ours, handles[2]));
    printf(", closed: %d\n", gpu_ipc_close(ours));
    fflush(stdout);
    return 0;
}

ACT(threads_open_and_captures_hold)
{
    CUipcMemHandle handles[HANDLES];
    CUgraph graph = NULL;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(open_in_threads);
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    for (int i = 0; i < HANDLES; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]);
        REQUIRE(gpu_memset(block, i + 1, sizes[i]));
        REQUIRE(gpu_sync());
        REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ipc_export(&handles[i], block);
        REQUIRE(gpu_capture_end(stream, &graph));
        REQUIRE(gpu_graph_destroy(graph, NULL));
    }
    EXPECT(write(importer.to, handles, sizeof handles) == sizeof handles);
    printf("importer ended with %d\n", ipc_peer_join(&importer));
    return 0;
}

/* A thread ends contexts that have memory. What other threads open meanwhile may come to the same
 * addresses. It is device memory from the first moment on. */

enum { OPENERS = 3 };

static int open_beside(int index, void *context)
{
    const CUipcMemHandle *handles = context;
    int unknown = 0;
    REQUIRE(gpu_open(0));
    if (index == OPENERS) {
        end_contexts(ENDING_CONTEXTS);
        atomic_store(&stop, true);
        return 0;
    }
    for (int round = 0; !atomic_load(&stop); round++) {
        uint64_t opened = open_beside_others(handles[1 + (index + round) % 2]), base = 0;
        size_t size_bytes = 0;
        unknown += scene_device_of(opened) < 0;
        unknown += gpu_address_range(&base, &size_bytes, opened) != 0;
        REQUIRE(gpu_ipc_close(opened));
    }
    return unknown;
}

static int open_beside_contexts(int from, int to)
{
    CUipcMemHandle handles[HANDLES];
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    contexts_end_slowly();
    scene_start(1, 60);
    printf("%d unknown\n", scene_threads(OPENERS + 1, open_beside, handles));
    fflush(stdout);
    return 0;
}

ACT(opened_memory_is_known_beside_contexts_that_end)
{
    ipc_share_with(open_beside_contexts, sizes, HANDLES);
    return 0;
}

/* Each of three processes has a buffer and an event of its own that the other two open. In every
 * round each waits on the GPU for the events of the others. Then it looks at what they have written
 * late into its buffer, and writes late into theirs. Ordered by interprocess events alone, no host
 * waits for work. */

enum { PROCESSES = 3, TURNS = 6, WORDS = 3 * 256 * 1024 };

/* Each process has a third of every buffer to write to; the two of the others are used in turn. */
struct process {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

struct shared {
    struct process processes[PROCESSES];
    atomic_int arrived;
};

static void barrier(struct shared *s, int *phase)
{
    atomic_fetch_add(&s->arrived, 1);
    ++*phase;
    while (atomic_load(&s->arrived) < *phase * PROCESSES)
        sched_yield();
}

static uint32_t value_of(int process, int round)
{
    return (uint32_t)(process * 100 + round + 1);
}

static int take_turns(struct shared *s, int me)
{
    uint64_t buffers[PROCESSES] = {0};
    CUevent events[PROCESSES];
    const uint64_t part = WORDS / PROCESSES;
    uint32_t errors = 0;
    int phase = 0;
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_malloc(&buffers[me], WORDS * 4));
    uint64_t errors_ptr = NEW_BLOCK(4);
    REQUIRE(gpu_memset(errors_ptr, 0, 4));
    REQUIRE(gpu_memset(buffers[me], 0, WORDS * 4));
    REQUIRE(gpu_sync());
    REQUIRE(cuEventCreate(&events[me], CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    int rc = (int)cuIpcGetEventHandle(&s->processes[me].event, events[me]);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
    REQUIRE(cuIpcGetMemHandle(&s->processes[me].memory, buffers[me]));
    barrier(s, &phase);
    for (int i = 0; i < PROCESSES; i++) {
        if (i == me)
            continue;
        REQUIRE(cuIpcOpenEventHandle(&events[i], s->processes[i].event));
        CUdeviceptr at = 0;
        REQUIRE(
            cuIpcOpenMemHandle(&at, s->processes[i].memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        buffers[i] = at;
    }
    for (int round = 0; round < TURNS; round++) {
        barrier(s, &phase); /* the events of the last round are recorded */
        for (int i = 0; i < PROCESSES; i++)
            if (i != me && round > 0)
                REQUIRE(cuStreamWaitEvent(stream, events[i], 0));
        for (int i = 0; i < PROCESSES; i++)
            if (i != me && round > 0)
                REQUIRE(gpu_check(buffers[me] + (uint64_t)i * part * 4, part,
                                  value_of(i, round - 1), errors_ptr, stream));
        /* Nobody writes anew before all have looked: a second event of the round, recorded again.
         */
        REQUIRE(cuEventRecord(events[me], stream));
        barrier(s, &phase);
        for (int i = 0; i < PROCESSES; i++)
            if (i != me)
                REQUIRE(cuStreamWaitEvent(stream, events[i], 0));
        barrier(s, &phase);
        for (int i = 0; i < PROCESSES; i++)
            if (i != me)
                REQUIRE(gpu_spin_fill(buffers[i] + (uint64_t)me * part * 4, part,
                                      value_of(me, round), 3000000, stream));
        REQUIRE(cuEventRecord(events[me], stream));
    }
    REQUIRE(gpu_get_async(&errors, errors_ptr, 4, stream));
    REQUIRE(gpu_stream_sync(stream));
    barrier(s, &phase);
    for (int i = 0; i < PROCESSES; i++) {
        REQUIRE(cuEventDestroy(events[i]));
        if (i != me)
            REQUIRE(cuIpcCloseMemHandle(buffers[i]));
    }
    barrier(s, &phase);
    REQUIRE(gpu_free(buffers[me]));
    REQUIRE(gpu_free(errors_ptr));
    return errors != 0;
}

ACT(events_order_processes)
{
    int failed = 0;
    bool skipped = false;
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(s != MAP_FAILED);
    scene_watchdog(60);
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = scene_fork();
        if (pid == 0)
            exit(take_turns(s, i));
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        EXPECT(wait(&status) > 0);
        skipped |= WIFEXITED(status) && WEXITSTATUS(status) == SCENE_SKIP;
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    if (skipped)
        return SCENE_SKIP;
    printf("%d processes saw wrong words\n", failed);
    return failed != 0;
}
