/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that are cancelled while they give handles out, open them and close them, the first of
 * each process too: those that come after them do the same and find their bytes, and both processes
 * end. Calls of the simulated driver are cancellation points as SIM_CANCEL says.
 */
#include "tests/preload/ipc_peer.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 60 };

static const size_t size_bytes = 300 * KIB;
static CUcontext primary;
static uint64_t shared;
static CUipcMemHandle handle;

struct life {
    unsigned calls_left; /* before it cancels itself; 0: it waits for others */
    CUdeviceptr opened;
};

static void maybe_cancel(struct life *l)
{
    if (l->calls_left && --l->calls_left == 0)
        pthread_cancel(pthread_self());
}

static void clean(void *life)
{
    struct life *l = life;
    if (l->opened)
        cuIpcCloseMemHandle(l->opened);
}

static void *open_and_close(void *life)
{
    struct life *l = life;
    pthread_cleanup_push(clean, l);
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

static void *give_out(void *life)
{
    CUipcMemHandle again;
    cuCtxSetCurrent(primary);
    for (;;) {
        maybe_cancel(life);
        cuIpcGetMemHandle(&again, shared);
        pthread_testcancel();
    }
    return NULL;
}

static int cancel_some(unsigned round, void *(*body)(void *))
{
    pthread_t threads[THREADS];
    struct life lives[THREADS];
    int others = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        lives[i] = (struct life){.calls_left = i % 2 ? 0 : round % 5 + 1};
        REQUIRE(pthread_create(&threads[i], NULL, body, &lives[i]));
    }
    nanosleep(&(struct timespec){.tv_nsec = round * 61 % 2000 * 1000}, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        void *end = NULL;
        if (i % 2)
            REQUIRE(pthread_cancel(threads[i]));
        REQUIRE(pthread_join(threads[i], &end));
        others += end != PTHREAD_CANCELED;
    }
    return others;
}

static int import(int from, int to)
{
    uint64_t opened = 0;
    int others = 0;
    EXPECT(read(from, &handle, sizeof handle) == sizeof handle);
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    for (unsigned round = 0; round < ROUNDS; round++) {
        others += cancel_some(round, open_and_close);
        REQUIRE(gpu_ipc_open(&opened, handle));
        others += scene_wrong_bytes(opened, size_bytes, 7) != 0;
        REQUIRE(gpu_ipc_close(opened));
    }
    printf("importer: %d wrong\n", others);
    fflush(stdout);
    return to < 0;
}

int main(void)
{
    int others = 0;
    scene_watchdog(60);
    struct ipc_peer importer = ipc_peer_fork_work(import);
    scene_start(1, 60);
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(gpu_malloc(&shared, size_bytes));
    REQUIRE(gpu_memset(shared, 7, size_bytes));
    REQUIRE(gpu_sync());
    for (unsigned round = 0; round < ROUNDS; round++)
        others += cancel_some(round, give_out);
    int rc = gpu_ipc_export(&handle, shared);
    if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
    EXPECT(write(importer.to, &handle, sizeof handle) == sizeof handle);
    printf("importer ended with %d\n", ipc_peer_join(&importer));
    printf("exporter: %d wrong\n", others);
    return 0;
}
