/* SPDX-License-Identifier: BSD-2-Clause */
/* What is wrong in calls of the driver: contexts, its own memory, threads beside each other. */
#include "tests/misuse/misuse.h"
#include <time.h>

enum { OBJECTS = 400, LENGTH_S = 1 };

static _Atomic uint64_t latest;
static atomic_bool over;
static atomic_int wrong_frees;

static int free_wrongly(void)
{
    int other = 0;
    uint64_t own = NEW_BLOCK(8 * KIB);
    REQUIRE(gpu_free(own));
    while (!atomic_load(&over)) {
        uint64_t block = atomic_load_explicit(&latest, memory_order_relaxed);
        if (!block)
            continue;
        other += gpu_free(block + 8) != CUDA_ERROR_INVALID_VALUE;
        gpu_last_error();
        if (atomic_load_explicit(&wrong_frees, memory_order_relaxed) < INT32_MAX)
            atomic_fetch_add_explicit(&wrong_frees, 1, memory_order_relaxed);
    }
    return other;
}

static int recycle(void)
{
    static const size_t sizes[] = {512, 3 * KIB, 9 * KIB, 30 * KIB, 40 * KIB};
    static uint64_t blocks[OBJECTS];
    time_t until = time(NULL) + LENGTH_S;
    for (size_t round = 0; time(NULL) <= until || atomic_load(&wrong_frees) < 100; round++) {
        size_t count = round % 8 ? OBJECTS / 10 : OBJECTS;
        for (size_t i = 0; i < count; i++) {
            REQUIRE(gpu_malloc(&blocks[i], sizes[round % (sizeof sizes / sizeof *sizes)]));
            atomic_store_explicit(&latest, blocks[i], memory_order_relaxed);
        }
        FREE_ALL(blocks, count);
    }
    atomic_store(&over, true);
    return 0;
}

static int run(int index, void *context)
{
    REQUIRE(gpu_open(0));
    return index ? recycle() : free_wrongly();
}

/* Frees of pointers into the middle of blocks, in one thread, while another allocates and frees
 * them. */
SIN(interior_free_beside)
{
    int other = scene_threads(2, run, NULL);
    printf("%d of the wrong frees gave another code\n", other);
    EXPECT(other == 0);
}

/* Driver calls before cuInit. */
ACT(no_init)
{
    CUdeviceptr block = 0;
    size_t free_bytes = 0, total_bytes = 0;
    scene_watchdog(60);
    misuse_expect("malloc", (int)cuMemAlloc(&block, 4096), CUDA_ERROR_NOT_INITIALIZED);
    misuse_expect("free", (int)cuMemFree(0x12345000), CUDA_ERROR_NOT_INITIALIZED);
    misuse_report("memory information", (int)cuMemGetInfo(&free_bytes, &total_bytes));
    scene_start(1, 60);
    return misuse_end();
}

/* Driver calls in a thread without a context, with good and with bad pointers. */
SIN(no_context)
{
    CUdeviceptr other = 0;
    size_t free_bytes = 0, total_bytes = 0;
    CUcontext context = NULL;
    CUipcMemHandle handle;
    uint64_t block = NEW_BLOCK(4096);
    REQUIRE(cuCtxGetCurrent(&context));
    REQUIRE(cuCtxSetCurrent(NULL));
    misuse_expect("malloc", (int)cuMemAlloc(&other, 4096), CUDA_ERROR_INVALID_CONTEXT);
    misuse_report("memory information", (int)cuMemGetInfo(&free_bytes, &total_bytes));
    misuse_report("free of a wild pointer", (int)cuMemFree(0x12345000));
    misuse_report("range", (int)cuMemGetAddressRange(&other, &total_bytes, block));
    misuse_report("handle", (int)cuIpcGetMemHandle(&handle, block));
    CUpointer_attribute access = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
    unsigned single = 7, plural = 7;
    void *answers[] = {&plural};
    misuse_report("access", (int)cuPointerGetAttribute(&single, access, block));
    misuse_report("access, among others", (int)cuPointerGetAttributes(1, &access, answers, block));
    printf("flags %u, %u\n", single, plural);
    REQUIRE(cuCtxSetCurrent(context));
    misuse_report("range", (int)cuMemGetAddressRange(&other, &total_bytes, block));
    misuse_report("handle", (int)cuIpcGetMemHandle(&handle, block));
    misuse_expect("free", gpu_free(block), 0);
}

/* A block freed while another context of the device is current, then once more in its own. */
SIN(free_other_context)
{
    CUcontext own = NULL, other = NULL;
    REQUIRE(cuCtxGetCurrent(&own));
    uint64_t block = NEW_BLOCK(4 * MIB);
    REQUIRE(cuCtxCreate(&other, NULL, 0, 0));
    misuse_report("free elsewhere", gpu_free(block));
    REQUIRE(cuCtxSetCurrent(own));
    misuse_report("free at home", gpu_free(block));
    REQUIRE(cuCtxDestroy(other));
}

/* Blocks of a context that was destroyed while they lived: freed, asked for, and used. */
SIN(free_after_destroy)
{
    CUcontext primary = NULL, context = NULL;
    uint64_t base = 0;
    size_t size_bytes = 0;
    REQUIRE(cuCtxGetCurrent(&primary));
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    uint64_t small = NEW_BLOCK(4096), large = NEW_BLOCK(20 * MIB);
    REQUIRE(cuCtxDestroy(context));
    REQUIRE(cuCtxSetCurrent(primary));
    misuse_expect("free small", gpu_free(small), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free large", gpu_free(large), CUDA_ERROR_INVALID_VALUE);
    misuse_report("memset", gpu_memset(large, 1, 4096));
    misuse_report("range", gpu_address_range(&base, &size_bytes, large));
}

/* Memory mapped by the program itself, freed as if it had been allocated. */
SIN(free_vmm)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr mapped = 0;
    REQUIRE(cuMemAddressReserve(&mapped, 4 * MIB, 0, 0, 0));
    REQUIRE(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    REQUIRE(cuMemMap(mapped, 4 * MIB, 0, handle, 0));
    REQUIRE(cuMemSetAccess(mapped, 4 * MIB, &access, 1));
    REQUIRE(gpu_memset(mapped, 6, 4 * MIB));
    misuse_expect("free", gpu_free(mapped), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free in stream order", gpu_free_async(mapped, NULL), CUDA_ERROR_INVALID_VALUE);
    printf("%zu wrong bytes\n", scene_wrong_bytes(mapped, 4 * MIB, 6));
    REQUIRE(cuMemUnmap(mapped, 4 * MIB));
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemAddressFree(mapped, 4 * MIB));
}
