/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread makes a call that waits for a persistent kernel, by its argument: it frees memory, or
 * closes another process's. Meanwhile the thread whose work raises the kernel's flag captures a
 * graph first: it must not wait for the other one, and the capture must not be spoilt.
 */
#include "tests/preload/ipc_peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Of the exporter, which makes one block and keeps it until it is told to end. */
static int export_block(int from, int to)
{
    struct ipc_message m = {.size_bytes = 4 * MIB, .byte = 5};
    uint64_t block = 0;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&block, m.size_bytes));
    REQUIRE(gpu_memset(block, m.byte, m.size_bytes));
    REQUIRE(gpu_sync());
    m.rc = gpu_ipc_export(&m.handle, block);
    EXPECT(write(to, &m, sizeof m) == (ssize_t)sizeof m);
    EXPECT(read(from, &m, sizeof m) == (ssize_t)sizeof m);
    return 0;
}

static uint64_t block;
static bool by_ipc;
static atomic_bool about_to;

static int wait_for_kernel(void)
{
    REQUIRE(gpu_open(0));
    atomic_store(&about_to, true);
    return by_ipc ? gpu_ipc_close(block) : gpu_free(block);
}

static int capture(CUstream stream, uint64_t ptr)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    int spoilt = gpu_fill(ptr, 64, 3, stream) != 0;
    spoilt += gpu_capture_end(stream, &graph) != 0;
    if (!spoilt) {
        REQUIRE(gpu_graph_instantiate(&exec, graph));
        REQUIRE(gpu_graph_destroy(graph, exec));
    }
    return spoilt;
}

static void *flag;
static CUstream forever;
static CUstream stream;
static uint64_t used;

static int either(int index, void *context)
{
    (void)context;
    if (index > 0)
        return wait_for_kernel();
    int spoilt = 0;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&about_to))
        scene_sleep_ms(1);
    scene_sleep_ms(100);
    for (int i = 0; i < 3; i++)
        spoilt += capture(stream, used);
    *(volatile uint32_t *)flag = 1;
    return spoilt;
}

int main(int argc, char **argv)
{
    struct ipc_message m = {.rc = 0};
    struct ipc_peer exporter = {.pid = 0};
    scene_watchdog(25);
    by_ipc = argc > 1 && strcmp(argv[1], "ipc") == 0;
    if (by_ipc)
        exporter = ipc_peer_fork_work(export_block);
    scene_start(1, 25);
    REQUIRE(gpu_malloc(&used, 4096));
    if (by_ipc) {
        EXPECT(read(exporter.from, &m, sizeof m) == (ssize_t)sizeof m);
        if (m.rc == CUDA_ERROR_NOT_FOUND || m.rc == CUDA_ERROR_NOT_SUPPORTED || m.rc == 36)
            scene_skip("the driver has no such handles");
        REQUIRE(m.rc);
        REQUIRE(gpu_ipc_open(&block, m.handle));
    } else {
        REQUIRE(gpu_malloc(&block, 4 * MIB));
    }
    REQUIRE(gpu_stream_create(&forever, false));
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_host_alloc(&flag, 4));
    *(volatile uint32_t *)flag = 0;
    /* The kernel's code is there before it has to be: loading it may wait. */
    REQUIRE(gpu_fill(used, 64, 2, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_wait_flag((uint64_t)(uintptr_t)flag, forever));
    printf("%d failed\n", scene_threads(2, either, NULL));
    REQUIRE(gpu_stream_sync(forever));
    REQUIRE(gpu_free(used));
    REQUIRE(gpu_host_free(flag));
    if (by_ipc) {
        EXPECT(write(exporter.to, &m, sizeof m) == (ssize_t)sizeof m);
        printf("the exporter ended with %d\n", ipc_peer_join(&exporter));
    }
    return 0;
}
