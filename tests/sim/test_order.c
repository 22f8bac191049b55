/* SPDX-License-Identifier: BSD-2-Clause */
/* Kinds of later write, beside kernels (test_hazard.c), that were measured on a real device. With
 * record and wait of a context event each comes after a late writer on a non-blocking stream.
 * Without the wait the late writer overwrites each, and the checker reports a hazard. */
#include "tests/sim/fixture.h"

#define WORDS (MIB / 4)
#define OLD 0x01010101u
#define NEW 0x02020202u

static CUdeviceptr target, source;
static CUstream late, non_blocking;
static uint32_t *pageable, *pinned;
static CUgraphExec graph;

#define KIND(name, ...)                                                                            \
    static void name(size_t words)                                                                 \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
KIND(graph_launch, OK(cuGraphLaunch(graph, non_blocking)))
KIND(h2d_pageable, OK(cuMemcpyHtoD(target, pageable, words * 4)))
KIND(h2d_pinned, OK(cuMemcpyHtoD(target, pinned, words * 4)))
KIND(h2d_async, OK(cuMemcpyHtoDAsync(target, pinned, words * 4, non_blocking)))
KIND(h2d_async_pageable, OK(cuMemcpyHtoDAsync(target, pageable, words * 4, non_blocking)))
KIND(d2d, OK(cuMemcpyDtoD(target, source, words * 4)))
KIND(d2d_async, OK(cuMemcpyDtoDAsync(target, source, words * 4, non_blocking)))
KIND(memset_sync, OK(cuMemsetD32(target, NEW, words)))
KIND(memset_async, OK(cuMemsetD8Async(target, 2, words * 4, non_blocking)))

static const struct kind {
    const char *name;
    void (*write)(size_t words);
    size_t words;
} kinds[] = {
    {"graph launch", graph_launch, WORDS},
    {"pageable H2D 64 B", h2d_pageable, 16},
    {"pageable H2D 4 KiB", h2d_pageable, KIB},
    {"pageable H2D 1 MiB", h2d_pageable, WORDS},
    {"pinned H2D 4 KiB", h2d_pinned, KIB},
    {"pinned H2D 1 MiB", h2d_pinned, WORDS},
    {"async pinned H2D", h2d_async, WORDS},
    {"async pageable H2D", h2d_async_pageable, KIB},
    {"D2D", d2d, WORDS},
    {"async D2D", d2d_async, WORDS},
    {"memset", memset_sync, WORDS},
    {"async memset", memset_async, WORDS},
};

static int set_up(void **state)
{
    CUgraph captured;
    fixture_start(state);
    target = alloc(MIB);
    source = alloc(MIB);
    late = stream(CU_STREAM_NON_BLOCKING);
    non_blocking = stream(CU_STREAM_NON_BLOCKING);
    pageable = malloc(MIB);
    OK(cuMemAllocHost((void **)&pinned, MIB));
    memset(pageable, 2, MIB);
    memset(pinned, 2, MIB);
    OK(cuMemsetD8(source, 2, MIB));
    OK(cuStreamBeginCapture(non_blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fill(non_blocking, target, WORDS, NEW);
    OK(cuStreamEndCapture(non_blocking, &captured));
    OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
    OK(cuCtxSynchronize());
    return 0;
}

enum order { NONE, WAIT, HOST_WAIT };

static void play(const struct kind *kind, enum order how)
{
    CUevent fence = event();
    uint64_t hazards;
    late_fill(late, target, WORDS, OLD, 20 * MS);
    OK(cuCtxRecordEvent(context, fence));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(fence));
    if (how == WAIT)
        OK(cuCtxWaitEvent(context, fence));
    if (how == HOST_WAIT)
        OK(cuEventSynchronize(fence));
    kind->write(kind->words);
    hazards = simHazardCount();
    if (wrong(target, kind->words, how == NONE ? OLD : NEW) != 0 || hazards != (how == NONE))
        fail_msg("%s, order %d: wrong contents or %llu hazards", kind->name, how,
                 (unsigned long long)hazards);
    simHazardReset();
    OK(cuEventDestroy(fence));
}

TEST(later_writes_are_ordered_by_a_wait_and_reported_without)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (enum order how = NONE; how <= HOST_WAIT; how++)
            play(&kinds[i], how);
}

/* A record covers the work that was submitted before it, but not the work between it and the
 * wait. */
TEST(work_between_record_and_wait_is_not_covered)
{
    CUevent fence = event();
    OK(cuCtxRecordEvent(context, fence));
    late_fill(late, target, WORDS, OLD, 20 * MS);
    OK(cuCtxWaitEvent(context, fence));
    fill(non_blocking, target, WORDS, NEW);
    assert_int_equal(wrong(target, WORDS, OLD), 0);
    assert_int_equal(simHazardCount(), 1);
    simHazardReset();
    OK(cuEventDestroy(fence));
}

/* The event of one device's context orders the work of another device. */
TEST(wait_for_an_event_of_another_device_orders)
{
    CUcontext other;
    CUevent fence = event();
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    late_fill(late, target, WORDS, OLD, 20 * MS);
    OK(cuCtxRecordEvent(context, fence));
    OK(cuCtxWaitEvent(other, fence));
    OK(cuCtxPushCurrent(other));
    OK(cuMemcpyHtoDAsync(target, pinned, MIB, CU_STREAM_PER_THREAD));
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent(NULL));
    assert_int_equal(wrong(target, WORDS, NEW), 0);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(other, fence));
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuEventDestroy(fence));
}

int main(void)
{
    return play_tests(set_up, NULL);
}
