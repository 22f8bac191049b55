/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Three processes, each with a buffer and an event of its own that the other two open: in every round
 * each waits on the GPU for the events of the others, looks at what they have written late into its
 * buffer, and writes late into theirs. Ordered by interprocess events alone, no host waits for work.
 */
#include "tests/preload/scene.h"

#include <stdatomic.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 3, ROUNDS = 6, WORDS = 3 * 256 * 1024 };

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

static int work(struct shared *s, int me)
{
    uint64_t buffers[PROCESSES] = {0};
    uint64_t errors_ptr = 0;
    CUevent events[PROCESSES];
    CUstream stream = NULL;
    const uint64_t part = WORDS / PROCESSES;
    uint32_t errors = 0;
    int phase = 0;
    scene_start(1, 60);
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_malloc(&buffers[me], WORDS * 4));
    REQUIRE(gpu_malloc(&errors_ptr, 4));
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
        REQUIRE(cuIpcOpenMemHandle(&at, s->processes[i].memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        buffers[i] = at;
    }
    for (int round = 0; round < ROUNDS; round++) {
        barrier(s, &phase); /* the events of the last round are recorded */
        for (int i = 0; i < PROCESSES; i++)
            if (i != me && round > 0)
                REQUIRE(cuStreamWaitEvent(stream, events[i], 0));
        for (int i = 0; i < PROCESSES; i++)
            if (i != me && round > 0)
                REQUIRE(gpu_check(buffers[me] + (uint64_t)i * part * 4, part, value_of(i, round - 1),
                                  errors_ptr, stream));
        /* Nobody writes anew before all have looked: a second event of the round, recorded again. */
        REQUIRE(cuEventRecord(events[me], stream));
        barrier(s, &phase);
        for (int i = 0; i < PROCESSES; i++)
            if (i != me)
                REQUIRE(cuStreamWaitEvent(stream, events[i], 0));
        barrier(s, &phase);
        for (int i = 0; i < PROCESSES; i++)
            if (i != me)
                REQUIRE(gpu_spin_fill(buffers[i] + (uint64_t)me * part * 4, part, value_of(me, round),
                                      3000000, stream));
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

int main(void)
{
    int failed = 0;
    bool skipped = false;
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(s != MAP_FAILED);
    scene_watchdog(60);
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0)
            exit(work(s, i));
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
