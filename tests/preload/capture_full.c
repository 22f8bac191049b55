/* SPDX-License-Identifier: BSD-2-Clause */
/* A device that is full, or nearly so, and captures that are open. */
#include "tests/preload/scene.h"

/* A full device beside an open capture. What is freed has to be there again, as natively, though no
 * fence can be recorded before the other thread's capture ends. In a capture of its own the thread
 * cannot wait for the end. So a request for too much is refused at once. */

enum { OPEN_MS = 200, AT_ONCE_S = 5 };

static atomic_bool opened;

static int capture_for_a_while(int index, void *context)
{
    const CUstreamCaptureMode *mode = context;
    CUgraph graph = NULL;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_capture_begin(stream, *mode));
    REQUIRE(gpu_spin(MS_NS, stream));
    atomic_store(&opened, true);
    scene_sleep_ms(OPEN_MS);
    int rc = gpu_capture_end(stream, &graph);
    REQUIRE(gpu_stream_destroy(stream));
    return rc;
}

/* The whole device is one block, freed with work in flight; the next one takes all of it again. */
static int beside(int index, void *context)
{
    const size_t size_bytes = *(size_t *)context;
    const uint64_t words = 64 * KIB;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    uint64_t block = NEW_BLOCK(size_bytes);
    while (!atomic_load(&opened))
        scene_sleep_ms(1);
    REQUIRE(gpu_spin_fill(block, words, 1, 2 * MS_NS, stream));
    REQUIRE(gpu_free(block));
    int rc = gpu_malloc(&block, size_bytes);
    if (rc != 0)
        return rc;
    REQUIRE(gpu_fill(block, words, 2, stream));
    int wrong = scene_wrong_words(block, words, 2, stream) != 0;
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_stream_destroy(stream));
    return wrong;
}

struct both {
    CUstreamCaptureMode mode;
    size_t size_bytes;
};

static int either(int index, void *context)
{
    struct both *both = context;
    return index == 0 ? capture_for_a_while(index, &both->mode) : beside(index, &both->size_bytes);
}

static int inside(size_t size_bytes)
{
    CUgraph graph = NULL;
    uint64_t more = 0;
    CUstream stream = NEW_STREAM(false);
    uint64_t block = NEW_BLOCK(size_bytes), small = NEW_BLOCK(MIB);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_spin(MS_NS, stream));
    REQUIRE(gpu_free(small));
    uint64_t start_ns = scene_now_ns();
    int rc = gpu_malloc(&more, size_bytes);
    bool at_once = scene_now_ns() - start_ns < AT_ONCE_S * 1000 * MS_NS;
    printf("in its own capture: error %d, %s\n", rc, at_once ? "at once" : "late");
    printf("last error %d, the capture ends with %d\n", gpu_last_error(),
           gpu_capture_end(stream, &graph));
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_stream_destroy(stream));
    return !at_once;
}

ACT(what_is_freed_is_there_after_the_capture)
{
    static const struct {
        const char *name;
        CUstreamCaptureMode mode;
    } rounds[] = {
        {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
        {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED},
    };
    int failures = 0;
    scene_start(1, 120);
    size_t free_bytes = FREE_BYTES();
    struct both both = {.size_bytes = free_bytes / 10 * 8 / (2 * MIB) * (2 * MIB)};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        both.mode = rounds[i].mode;
        atomic_store(&opened, false);
        int here = scene_threads(2, either, &both);
        printf("beside a %s capture: %d failures\n", rounds[i].name, here);
        failures += here;
    }
    failures += inside(both.size_bytes);
    printf("last error %d\n", gpu_last_error());
    return failures;
}

/* Very many captures are open at once. After the last one memory is used again as ever. */

enum { STREAMS = 700, TURNS = 60 };

static CUstream streams[STREAMS];

/* Each time a large part of the device, written late: it comes back only when that is known to be
 * done. */
static int turns(void)
{
    int failed = 0;
    size_t free_bytes = FREE_BYTES();
    for (uint32_t i = 0; i < TURNS; i++) {
        uint64_t block = 0;
        if (gpu_malloc(&block, free_bytes / 10) != 0) {
            failed++;
            continue;
        }
        REQUIRE(gpu_spin_fill(block, 1024, i, 10000, streams[i % 2]));
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_sync());
    return failed;
}

ACT(very_many_captures_may_be_open)
{
    scene_start(1, 60);
    NEW_STREAMS(streams, STREAMS, false);
    printf("before: %d failed\n", turns());
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(gpu_capture_begin(streams[i], CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < STREAMS; i++) {
        CUgraph graph = END_CAPTURE(streams[i]);
        REQUIRE(cuGraphDestroy(graph));
    }
    int failed = turns();
    printf("after: %d failed\n", failed);
    return failed != 0;
}

/* A thread frees memory after work on two streams, then another thread begins a capture. The memory
 * is free while the capture is open. */

enum { BLOCKS = 8, FREED = 1, CAPTURING = 2, TAKEN = 3 };

static atomic_int step_now;

static void await_step(int wanted)
{
    while (atomic_load(&step_now) < wanted)
        scene_sleep_ms(1);
}

static int capture_meanwhile(void)
{
    CUstream stream = NEW_STREAM(false);
    await_step(FREED);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    atomic_store(&step_now, CAPTURING);
    await_step(TAKEN);
    END_CAPTURE(stream);
    return 0;
}

static int take(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle = 0;
    CUstream pair[2];
    uint64_t blocks[BLOCKS];
    NEW_STREAMS(pair, 2, false);
    size_t free_bytes = FREE_BYTES();
    size_t most = free_bytes / 10 * 7 / (2 * MIB) * (2 * MIB);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = NEW_BLOCK(most / BLOCKS);
        REQUIRE(gpu_memset_async(blocks[i], i, 64, pair[i % 2]));
    }
    FREE_ALL(blocks, BLOCKS);
    atomic_store(&step_now, FREED);
    await_step(CAPTURING);
    int rc = cuMemCreate(&handle, most, &prop, 0);
    atomic_store(&step_now, TAKEN);
    return rc;
}

static int play(int index, void *unused)
{
    REQUIRE(gpu_open(0));
    return index == 0 ? capture_meanwhile() : take();
}

ACT(what_was_freed_before_a_capture_is_free)
{
    REQUIRE(setenv("SIM_CAPACITY", "2G", 0));
    scene_start(1, 60);
    int rc = scene_threads(2, play, NULL);
    printf("taken: %d\n", rc);
    return rc;
}
