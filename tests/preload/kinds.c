/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of all kinds, and the calls that map memory. */
#include "tests/preload/scene.h"

/* Memory of every other kind that a program can get is the driver's. It works as ever beside
 * pooled blocks. Each kind is freed as it must be, and is counted. Pitched blocks are the pool's,
 * but not with arguments that the driver refuses. The program starts itself again, and reads the
 * counts that that one has left behind. */

static const char inner_variable[] = "SCENE_INNER";

static void use(const char *what, uint64_t block)
{
    REQUIRE(gpu_fill(block, 4 * KIB, 21, NULL));
    printf("%s: %u wrong words\n", what, scene_wrong_words(block, 4 * KIB, 21, NULL));
}

static void pools(void)
{
    CUdeviceptr block = 0;
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    REQUIRE(cuMemAllocAsync(&block, 16 * KIB, NULL));
    use("stream-ordered", block);
    printf("freed plainly: %d\n", gpu_free(block));
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    REQUIRE(cuMemAllocFromPoolAsync(&block, 16 * KIB, pool, NULL));
    use("from a pool", block);
    CUmemoryPool of = NULL;
    REQUIRE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    printf("its pool is %s\n", of == pool ? "that one" : "another");
    REQUIRE(cuMemFreeAsync(block, NULL));
    REQUIRE(gpu_sync());
    REQUIRE(cuMemPoolDestroy(pool));
    uint64_t plain = NEW_BLOCK(16 * KIB);
    REQUIRE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain));
    printf("that of a plain block is %s\n", of == NULL ? "none" : "some");
    REQUIRE(gpu_free(plain));
}

static void mapped(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr at = 0;
    REQUIRE(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    REQUIRE(cuMemCreate(&handle, 4 * MIB, &properties, 0));
    REQUIRE(cuMemMap(at, 4 * MIB, 0, handle, 0));
    REQUIRE(cuMemSetAccess(at, 4 * MIB, &access, 1));
    use("mapped", at);
    REQUIRE(cuMemRetainAllocationHandle(&again, (void *)(at + 12345)));
    printf("its handle is %s\n", again == handle ? "its own" : "another");
    REQUIRE(cuMemRelease(again));
    printf("plain free of it: %d\n", gpu_free(at));
    REQUIRE(cuMemUnmap(at, 4 * MIB));
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemAddressFree(at, 4 * MIB));
}

static void host_and_managed(void)
{
    CUdeviceptr managed = 0;
    void *pinned = NULL, *old = NULL;
    void *own = aligned_alloc(4096, 64 * KIB);
    EXPECT(own != NULL);
    REQUIRE(cuMemAllocManaged(&managed, 16 * KIB, CU_MEM_ATTACH_GLOBAL));
    use("managed", managed);
    REQUIRE(gpu_free(managed));
    REQUIRE(cuMemHostAlloc(&pinned, 64 * KIB, CU_MEMHOSTALLOC_DEVICEMAP));
    use("pinned", (uint64_t)(uintptr_t)pinned);
    REQUIRE(cuMemAllocHost(&old, 64 * KIB));
    REQUIRE(cuMemHostRegister(own, 64 * KIB, 0));
    REQUIRE(cuMemHostUnregister(own));
    REQUIRE(cuMemFreeHost(old));
    REQUIRE(cuMemFreeHost(pinned));
    free(own);
}

static void arrays(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {
        .Width = 64, .Height = 64, .Depth = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array = NULL;
    REQUIRE(cuArrayCreate(&array, &flat));
    REQUIRE(cuArrayDestroy(array));
    REQUIRE(cuArray3DCreate(&array, &deep));
    REQUIRE(cuArrayDestroy(array));
}

/* What the driver says to arguments that make no sense. */
static void kinds_refused(void)
{
    CUdeviceptr block = 0;
    size_t pitch_bytes = 0;
    printf("pitched, elements of 3: %d\n", (int)cuMemAllocPitch(&block, &pitch_bytes, 100, 10, 3));
    printf("width 0: %d\n", (int)cuMemAllocPitch(&block, &pitch_bytes, 0, 10, 4));
    printf("height 0: %d\n", (int)cuMemAllocPitch(&block, &pitch_bytes, 100, 0, 4));
    printf("nowhere: %d\n", (int)cuMemAllocPitch(NULL, &pitch_bytes, 100, 10, 4));
    printf("too much: %d\n",
           (int)cuMemAllocPitch(&block, &pitch_bytes, (size_t)1 << 40, 1 << 20, 4));
}

/* Memory that is not managed takes no advice, whole or in part. */
static void advised(size_t size_bytes)
{
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    int word = -77;
    void *answer = &word;
    size_t answer_bytes = sizeof word;
    CUmem_range_attribute asked = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    if (!scene_driver_has("cuMemAdvise_v2") || !scene_driver_has("cuMemPrefetchAsync_v2"))
        return;
    uint64_t block = NEW_BLOCK(size_bytes);
    for (int freed = 0; freed <= 1; freed++) {
        printf("%zu bytes%s:", size_bytes, freed ? ", freed" : "");
        for (int advice = 1; advice <= 6; advice++)
            printf(" %d", (int)cuMemAdvise_v2(block + size_bytes / 2, size_bytes / 2,
                                              (CUmem_advise)advice, device));
        for (int which = 1; which <= 4; which++)
            printf(" %d", (int)cuMemRangeGetAttribute(
                              &word, sizeof word, (CUmem_range_attribute)which, block, size_bytes));
        printf(" %d",
               (int)cuMemRangeGetAttributes(&answer, &answer_bytes, &asked, 1, block, size_bytes));
        printf(" %d\n", (int)cuMemPrefetchAsync_v2(block, size_bytes, device, 0, NULL));
        if (!freed)
            REQUIRE(gpu_free(block));
    }
}

static int inner(void)
{
    scene_start(1, 60);
    uint64_t beside = NEW_BLOCK(16 * KIB);
    pools();
    mapped();
    host_and_managed();
    if (scene_driver_has("cuArray3DCreate_v2"))
        arrays();
    kinds_refused();
    advised(4096);
    advised(6 * MIB);
    use("beside them", beside);
    REQUIRE(gpu_free(beside));
    fflush(stdout);
    return 0;
}

static void tell_count(const char *text, const char *field, int expected)
{
    const char *at = strstr(text, field);
    int count = expected;
    if (scene_preloaded())
        count = at != NULL ? atoi(at + strlen(field) + 2) : -1;
    printf("%s %d\n", field, count);
}

ACT(kinds)
{
    int status;
    if (getenv(inner_variable) != NULL)
        return inner();
    const char *text = scene_again_report(inner_variable, "1", &status);
    if (status == 0) {
        tell_count(text, "num_async_allocs", 2);
        tell_count(text, "num_managed_allocs", 1);
        tell_count(text, "num_vmm_allocs", 1);
        tell_count(text, "num_host_allocs", 3);
    }
    return status;
}

/* The calls for mapped memory, on memory of cuMemAlloc and on addresses near it, which the program
 * never reserved. The driver refuses them and nothing is lost, or answers as for memory that was
 * never mapped. On the program's own mapped memory they work as ever. */

static void on_own_memory(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemAccessDesc both_ways = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    unsigned long long access = 99;
    REQUIRE(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    REQUIRE(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    REQUIRE(cuMemMap(at, 2 * MIB, 0, handle, 0));
    REQUIRE(cuMemSetAccess(at, 2 * MIB, &both_ways, 1));
    REQUIRE(cuMemGetAccess(&access, &here, at + MIB));
    printf("its own: access %llu, %zu wrong bytes", access,
           gpu_memset(at, 3, MIB) == 0 ? scene_wrong_bytes(at, MIB, 3) : MIB);
    REQUIRE(cuMemUnmap(at, 2 * MIB));
    REQUIRE(cuMemAddressFree(at, 2 * MIB));
    REQUIRE(cuMemRelease(handle));
    printf(", gone\n");
}

static void refused(const char *what, uint64_t address)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemAccessDesc none = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    CUmemGenericAllocationHandle handle = 0;
    uint64_t granule = address & ~(uint64_t)(2 * MIB - 1);
    unsigned long long access = 99;
    printf("%s: access %d", what, (int)cuMemGetAccess(&access, &here, address));
    printf(" (%llu), set %d", access, (int)cuMemSetAccess(granule, 2 * MIB, &none, 1));
    printf(" and %d", (int)cuMemSetAccess(address, 4096, &none, 1));
    printf(", unmap %d", (int)cuMemUnmap(granule, 2 * MIB));
    printf(" and %d", (int)cuMemUnmap(address, 4096));
    REQUIRE(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    printf(", map %d", (int)cuMemMap(granule, 2 * MIB, 0, handle, 0));
    REQUIRE(cuMemRelease(handle));
    printf(", free the addresses %d\n", (int)cuMemAddressFree(granule, 2 * MIB));
}

/* Never on a real device: multicast objects are a matter of all who share its host's switches. */
static void bind(size_t size, uint64_t block)
{
    CUresult (*bind_of)(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t,
                        unsigned long long);
    CUmulticastObjectProp prop = {.numDevices = 1, .size = 4 * MIB};
    CUmemGenericAllocationHandle object = 0;
    uint64_t granule = block & ~(uint64_t)(2 * MIB - 1);
    if (!scene_simulated())
        return;
    *(void **)&bind_of = scene_driver_symbol("cuMulticastBindAddr_v2");
    REQUIRE(cuMulticastCreate(&object, &prop));
    REQUIRE(cuMulticastAddDevice(object, 0));
    printf("%zu bytes, bound %d", size, (int)cuMulticastBindAddr(object, 0, granule, 2 * MIB, 0));
    printf(" and %d\n", (int)bind_of(object, 0, 2 * MIB, granule, 2 * MIB, 0));
    REQUIRE(cuMemRelease(object));
}

/* In a process of its own. After a while a cache has reserved addresses without memory. The program
 * tries to free those around an earlier block, in sizes of powers of two and 17 times as much. */
static int free_addresses(void)
{
    int freed = 0;
    REQUIRE(setenv("GPUCACHE_IDLE_TIMEOUT", "5ms", 1));
    scene_start(1, 60);
    uint64_t block = NEW_BLOCK(4096);
    REQUIRE(gpu_free(block));
    scene_sleep_ms(100);
    uint64_t granule = block & ~(uint64_t)(2 * MIB - 1);
    for (uint64_t back = 0; back < 8; back++)
        for (int shift = 21; shift < 44; shift++)
            for (uint64_t times = 1; times <= 17; times += 16)
                freed += cuMemAddressFree(granule - back * 2 * MIB, times << shift) == CUDA_SUCCESS;
    block = NEW_BLOCK(4096);
    REQUIRE(gpu_memset(block, 7, 4096));
    printf("address space that nobody reserved, freed: %d, %zu wrong\n", freed,
           scene_wrong_bytes(block, 4096, 7));
    REQUIRE(gpu_free(block));
    fflush(stdout);
    return 0;
}

static int elsewhere(int (*body)(void))
{
    pid_t child = scene_fork();
    if (child == 0)
        _exit(body());
    return scene_wait(child);
}

ACT(mapping_calls)
{
    static const size_t sizes[] = {4096, 200 * KIB, 2 * MIB, 6 * MIB};
    int rc = elsewhere(free_addresses);
    if (rc != 0)
        return rc;
    scene_start(1, 60);
    if (!scene_driver_has("cuMemMap"))
        scene_skip("no mapped memory");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]), freed = NEW_BLOCK(6 * MIB);
        REQUIRE(gpu_memset(block, 7, sizes[i]));
        refused("a block", block);
        refused("its end", block + sizes[i] - 512);
        bind(sizes[i], block);
        refused("a gigabyte behind", block + 1024 * MIB);
        refused("64 gigabytes behind", block + 65536 * MIB);
        REQUIRE(gpu_free(freed));
        refused("freed", freed);
        printf("%zu bytes, %zu wrong\n", sizes[i], scene_wrong_bytes(block, sizes[i], 7));
        REQUIRE(gpu_free(block));
    }
    on_own_memory();
    return 0;
}
