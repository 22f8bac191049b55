/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The threads of one process, which signals interrupt all the time, open and close the same handles at
 * the same time, also in the middle of stream captures of every kind: each finds its bytes, no capture
 * is spoilt, and a graph that uses what was opened in its capture works.
 */
#include "tests/preload/ipc_peer.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { HANDLES = 3, THREADS = 4, ROUNDS = 40 };

static const size_t sizes[HANDLES] = {5 * MIB, 1200, 200 * KIB};

static int open_and_close(int index, void *context)
{
    const CUipcMemHandle *handles = context;
    int wrong = 0;
    REQUIRE(gpu_open(0));
    for (int round = 0; round < ROUNDS; round++) {
        int which = (index + round) % HANDLES;
        uint64_t first = 0, second = 0;
        REQUIRE(gpu_ipc_open(&first, handles[which]));
        REQUIRE(gpu_ipc_open(&second, handles[which]));
        wrong += first != second || scene_wrong_bytes(first, 1000, (unsigned char)(which + 1)) != 0;
        REQUIRE(gpu_ipc_close(first));
        wrong += scene_wrong_bytes(second + sizes[which] - 100, 100, (unsigned char)(which + 1)) != 0;
        REQUIRE(gpu_ipc_close(second));
    }
    return wrong;
}

static uint32_t capture(const CUipcMemHandle *handles, CUstreamCaptureMode mode, uint64_t errors_ptr)
{
    uint64_t before = 0, inside = 0;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint32_t errors = 1;
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_ipc_open(&before, handles[2]));
    REQUIRE(gpu_capture_begin(stream, mode));
    REQUIRE(gpu_memset_async(errors_ptr, 0, 4, stream));
    REQUIRE(gpu_ipc_open(&inside, handles[0]));
    REQUIRE(gpu_check(inside, sizes[0] / 4, 0x01010101, errors_ptr, stream));
    REQUIRE(gpu_ipc_close(before));
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

static void ignore(int signal_number)
{
    (void)signal_number;
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

static int import(int from, int to)
{
    CUipcMemHandle handles[HANDLES];
    uint64_t errors_ptr = 0, ours = 0;
    EXPECT(read(from, handles, sizeof handles) == sizeof handles);
    scene_start(1, 60);
    start_signals();
    printf("%d wrong in threads\n", scene_threads(THREADS, open_and_close, handles));
    REQUIRE(gpu_malloc(&errors_ptr, 4));
    /* A real driver loads a kernel at its first launch; that is no part of a capture. */
    REQUIRE(gpu_check(errors_ptr, 1, 0, errors_ptr, NULL));
    REQUIRE(gpu_sync());
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++)
        printf("capture %d: %u wrong words\n", mode, capture(handles, (CUstreamCaptureMode)mode, errors_ptr));
    printf("opened after it: %d", gpu_ipc_open(&ours, handles[2]));
    printf(", closed: %d\n", gpu_ipc_close(ours));
    fflush(stdout);
    return 0;
}

int main(void)
{
    CUipcMemHandle handles[HANDLES];
    CUstream stream = NULL;
    CUgraph graph = NULL;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(1, 60);
    REQUIRE(gpu_stream_create(&stream, false));
    for (int i = 0; i < HANDLES; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        REQUIRE(gpu_memset(block, i + 1, sizes[i]));
        REQUIRE(gpu_sync());
        REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        int rc = gpu_ipc_export(&handles[i], block);
        REQUIRE(gpu_capture_end(stream, &graph));
        if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(rc);
        REQUIRE(gpu_graph_destroy(graph, NULL));
    }
    EXPECT(write(importer.to, handles, sizeof handles) == sizeof handles);
    printf("importer ended with %d\n", ipc_peer_join(&importer));
    return 0;
}
