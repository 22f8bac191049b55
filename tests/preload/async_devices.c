/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver's own pools (cuMemAllocAsync) on a device that has no pool of ours: a stream, or a
 * pool of the driver's, of one device is used while a context of another one is current. Idle
 * memory goes back there too. Bare, the program trims the pools itself. */
#include "tests/preload/scene.h"

static uint64_t idle_bytes(CUmemoryPool pool)
{
    cuuint64_t reserved = 0, used = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    return reserved - used;
}

static CUmemoryPool default_pool(int device)
{
    CUmemoryPool pool = NULL;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, device));
    return pool;
}

static CUmemoryPool make_pool(int device)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool = NULL;
    REQUIRE(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* Leaves so many bytes idle in the pool. */
static void fill(CUmemoryPool pool, size_t size_bytes, CUstream stream)
{
    cuuint64_t all = UINT64_MAX;
    CUdeviceptr block = 0;
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    REQUIRE(cuMemAllocFromPoolAsync(&block, size_bytes, pool, stream));
    REQUIRE(cuMemFreeAsync(block, stream));
    REQUIRE(cuStreamSynchronize(stream));
}

/* Returns a stream of the first device. The second one is current from here on. */
static CUstream start_on_second(void)
{
    scene_start(2, 120);
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_open(1));
    return stream;
}

static void await_idle(CUmemoryPool pool, uint64_t most)
{
    if (!scene_preloaded())
        REQUIRE(cuMemPoolTrimTo(pool, most));
    for (int i = 0; i < 2000 && idle_bytes(pool) > most; i++)
        scene_sleep_ms(5);
    printf("idle %d MiB\n", (int)(idle_bytes(pool) / MIB));
}

static void flush(void)
{
    if (scene_preloaded())
        REQUIRE(raise(SIGUSR1));
}

ACT(a_flush_trims_the_device_of_a_stream)
{
    CUstream stream = start_on_second();
    NEW_BLOCK(4096);
    fill(default_pool(0), 32 * MIB, stream);
    flush();
    await_idle(default_pool(0), 0);
    return 0;
}

ACT(a_flush_trims_the_device_of_a_pool)
{
    scene_start(2, 120);
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_open(0));
    NEW_BLOCK(4096);
    CUmemoryPool pool = make_pool(1);
    fill(pool, 32 * MIB, NULL);
    flush();
    await_idle(pool, 0);
    return 0;
}

ACT(a_flush_trims_where_no_device_has_a_pool_of_ours)
{
    REQUIRE(setenv("GPUCACHE_BACKING", "driver", 1));
    CUstream stream = start_on_second();
    fill(default_pool(0), 32 * MIB, stream);
    fill(default_pool(1), 32 * MIB, NULL);
    flush();
    await_idle(default_pool(0), 0);
    await_idle(default_pool(1), 0);
    return 0;
}

/* On a device of which no context is current. */
ACT(its_idle_memory_serves_a_call_that_finds_none)
{
    CUstream stream = start_on_second();
    REQUIRE(gpu_open(0));
    size_t most = FREE_BYTES() / 4 * 3 / (2 * MIB) * (2 * MIB);
    REQUIRE(gpu_open(1));
    CUmemoryPool first = make_pool(0), second = make_pool(0);
    fill(first, most, stream);
    if (!scene_preloaded())
        REQUIRE(cuMemPoolTrimTo(first, 0));
    fill(second, most, stream);
    printf("idle %d MiB\n", (int)(idle_bytes(first) / MIB));
    return 0;
}

/* The limit is that of the first device alone. */
ACT(limits_of_the_device_count_it)
{
    REQUIRE(setenv("GPUCACHE_MAX_IDLE", "0=8M", 1));
    CUstream stream = start_on_second();
    fill(default_pool(0), 64 * MIB, stream);
    await_idle(default_pool(0), 8 * MIB);
    return 0;
}

ACT(limits_hold_where_no_device_has_a_pool_of_ours)
{
    REQUIRE(setenv("GPUCACHE_BACKING", "driver", 1));
    REQUIRE(setenv("GPUCACHE_MAX_IDLE", "8M", 1));
    CUstream stream = start_on_second();
    fill(default_pool(1), 64 * MIB, NULL);
    await_idle(default_pool(1), 8 * MIB);
    fill(default_pool(0), 64 * MIB, stream);
    await_idle(default_pool(0), 8 * MIB);
    return 0;
}

ACT(what_is_idle_for_long_goes)
{
    REQUIRE(setenv("GPUCACHE_IDLE_TIMEOUT", "200ms", 1));
    CUstream stream = start_on_second();
    fill(default_pool(0), 64 * MIB, stream);
    await_idle(default_pool(0), 0);
    return 0;
}
