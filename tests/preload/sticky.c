/* SPDX-License-Identifier: BSD-2-Clause */
/* A kernel that writes where nothing is: its error sticks to its context, and to no other. */
#include "tests/preload/scene.h"

/* ---- the first call to tell
 * A kernel writes where nothing is. Whichever call tells the program first, everything after it
 * fails with the same error. That holds for frees, and for allocations that a cache could serve,
 * also in other threads with cached blocks of their own. */

enum { SIZES = 5, THREADS = 3 };
static const size_t sizes[SIZES] = {512, 30 * KIB, 200 * KIB, 3 * MIB, 40 * MIB};
static const uint64_t nowhere = 0x1000;

static CUstream stream;
static CUevent event;
static uint64_t kept;
static void *pinned;
static pthread_barrier_t cached, broken;

/* Blocks of each size that were allocated and freed. */
static void cache_blocks(void)
{
    uint64_t blocks[SIZES];
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < SIZES; i++)
            blocks[i] = NEW_BLOCK(sizes[i]);
        FREE_ALL(blocks, SIZES);
    }
}

static int by_sync(void)
{
    return gpu_sync();
}

static int by_stream(void)
{
    return gpu_stream_sync(stream);
}

static int by_query(void)
{
    int rc = CUDA_ERROR_NOT_READY;
    while (rc == CUDA_ERROR_NOT_READY)
        rc = gpu_stream_query(stream);
    return rc;
}

static int by_event(void)
{
    return gpu_event_sync(event);
}

static int by_event_query(void)
{
    int rc = CUDA_ERROR_NOT_READY;
    while (rc == CUDA_ERROR_NOT_READY)
        rc = gpu_event_query(event);
    return rc;
}

static int by_copy(void)
{
    static char to[64];
    return gpu_get(to, kept, sizeof to);
}

/* Nobody waits: the kernel fails behind the program's back. */
static int by_launch(void)
{
    int rc = 0;
    for (int tries = 0; rc == 0 && tries < 100000; tries++)
        rc = gpu_spin(1000, stream);
    return rc;
}

/* It waits for all work. */
static int by_host_free(void)
{
    return gpu_host_free(pinned);
}

static int by_record(void)
{
    int rc = 0;
    for (int tries = 0; rc == 0 && tries < 100000; tries++) {
        gpu_spin(1000, stream);
        rc = gpu_event_record(event, stream);
    }
    return rc;
}

static int allocate(size_t size_bytes)
{
    uint64_t block = 0;
    return gpu_malloc(&block, size_bytes);
}

static void show_allocations(const char *who)
{
    printf("%s:", who);
    for (int i = 0; i < SIZES; i++)
        printf(" %d", allocate(sizes[i]));
    printf("\n");
}

static int in_other_thread(int index, void *codes)
{
    REQUIRE(gpu_open(0));
    cache_blocks();
    pthread_barrier_wait(&cached);
    pthread_barrier_wait(&broken);
    for (int i = 0; i < SIZES; i++)
        ((int (*)[SIZES])codes)[index][i] = allocate(sizes[i]);
    return 0;
}

static int break_and_look(int (*look)(void))
{
    REQUIRE(gpu_open(0));
    stream = NEW_STREAM(true);
    REQUIRE(gpu_event_create(&event));
    kept = NEW_BLOCK(512);
    REQUIRE(gpu_host_alloc(&pinned, 4096));
    uint64_t large = NEW_BLOCK(8 * MIB);
    cache_blocks();
    uint64_t freed = NEW_BLOCK(200 * KIB);
    REQUIRE(gpu_free(freed));
    pthread_barrier_wait(&cached);
    REQUIRE(gpu_fill(nowhere, 1024, 1, stream));
    REQUIRE(gpu_event_record(event, stream));
    printf("told: %d\n", look());
    show_allocations("allocations");
    printf("frees: %d %d\n", gpu_free(kept), gpu_free(large));
    printf("of what was freed before: %s\n", gpu_free(freed) != 0 ? "refused" : "done");
    printf("last error %d\n", gpu_last_error());
    printf("free memory: %d\n", gpu_mem_info(&(size_t){0}, NULL));
    show_allocations("again");
    pthread_barrier_wait(&broken);
    return 0;
}

struct role {
    int codes[THREADS][SIZES];
    int (*look)(void);
};

static int play(int index, void *argument)
{
    struct role *role = argument;
    return index == THREADS ? break_and_look(role->look) : in_other_thread(index, role->codes);
}

static int tell(int (*look)(void))
{
    struct role role = {.look = look};
    scene_start(1, 60);
    REQUIRE(pthread_barrier_init(&cached, NULL, THREADS + 1));
    REQUIRE(pthread_barrier_init(&broken, NULL, THREADS + 1));
    scene_threads(THREADS + 1, play, &role);
    for (int i = 0; i < THREADS; i++) {
        printf("thread %d:", i);
        for (int j = 0; j < SIZES; j++)
            printf(" %d", role.codes[i][j]);
        printf("\n");
    }
    return 0;
}

ACT_IS(ACT(a_synchronisation_tells_it_first), tell(by_sync))
ACT_IS(ACT(a_stream_tells_it_first), tell(by_stream))
ACT_IS(ACT(a_query_tells_it_first), tell(by_query))
ACT_IS(ACT(an_event_tells_it_first), tell(by_event))
ACT_IS(ACT(an_events_query_tells_it_first), tell(by_event_query))
ACT_IS(ACT(a_copy_tells_it_first), tell(by_copy))
ACT_IS(ACT(a_launch_tells_it_first), tell(by_launch))
ACT_IS(ACT(a_record_tells_it_first), tell(by_record))
ACT_IS(ACT(a_free_of_host_memory_tells_it_first), tell(by_host_free))
