/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of every other kind that a program can get is the driver's. It works as ever beside pooled
 * blocks. Each kind is freed as it must be, and is counted. Pitched blocks are the pool's, but not
 * with arguments that the driver refuses. The program starts itself again, and reads the counts
 * that that one has left behind.
 */
#include "tests/preload/scene.h"

#include <string.h>
#include <unistd.h>

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
    uint64_t plain = 0;
    REQUIRE(gpu_malloc(&plain, 16 * KIB));
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
    CUmemGenericAllocationHandle handle = 0;
    CUmemGenericAllocationHandle again = 0;
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
    void *pinned = NULL;
    void *old = NULL;
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
static void refused(void)
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
    uint64_t block = 0;
    int word = -77;
    void *answer = &word;
    size_t answer_bytes = sizeof word;
    CUmem_range_attribute asked = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    if (!scene_driver_has("cuMemAdvise_v2") || !scene_driver_has("cuMemPrefetchAsync_v2"))
        return;
    REQUIRE(gpu_malloc(&block, size_bytes));
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
    uint64_t beside = 0;
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&beside, 16 * KIB));
    pools();
    mapped();
    host_and_managed();
    if (scene_driver_has("cuArray3DCreate_v2"))
        arrays();
    refused();
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

int main(void)
{
    static char text[65536];
    char stats[] = "/tmp/scene-kinds-XXXXXX";
    char value[64];
    if (getenv(inner_variable) != NULL)
        return inner();
    int descriptor = mkstemp(stats);
    EXPECT(descriptor >= 0);
    snprintf(value, sizeof value, "exit-json:%s", stats);
    REQUIRE(setenv("GPUCACHE_STATS", value, 1));
    int status = scene_again(inner_variable, "1");
    FILE *file = fopen(stats, "r");
    EXPECT(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    unlink(stats);
    if (status == 0) {
        tell_count(text, "num_async_allocs", 2);
        tell_count(text, "num_managed_allocs", 1);
        tell_count(text, "num_vmm_allocs", 1);
        tell_count(text, "num_host_allocs", 3);
    }
    return status;
}
