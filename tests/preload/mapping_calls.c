/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The calls for mapped memory, on memory of cuMemAlloc and on addresses near it, which the program
 * never reserved. The driver refuses them and nothing is lost, or answers as for memory that was
 * never mapped. On the program's own mapped memory they work as ever.
 */
#include "tests/preload/scene.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *symbol = driver != NULL ? dlsym(driver, "cuMulticastBindAddr_v2") : NULL;
    memcpy(&bind_of, &symbol, sizeof bind_of);
    REQUIRE(cuMulticastCreate(&object, &prop));
    REQUIRE(cuMulticastAddDevice(object, 0));
    printf("%zu bytes, bound %d", size, (int)cuMulticastBindAddr(object, 0, granule, 2 * MIB, 0));
    printf(" and %d\n", (int)bind_of(object, 0, 2 * MIB, granule, 2 * MIB, 0));
    REQUIRE(cuMemRelease(object));
    dlclose(driver);
}

/* In a process of its own. After a while a cache has reserved addresses without memory. The program
 * tries to free those around an earlier block, in sizes of powers of two and 17 times as much. */
static int free_addresses(void)
{
    uint64_t block = 0;
    int freed = 0;
    REQUIRE(setenv("GPUCACHE_IDLE_TIMEOUT", "5ms", 1));
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(gpu_free(block));
    scene_sleep_ms(100);
    uint64_t granule = block & ~(uint64_t)(2 * MIB - 1);
    for (uint64_t back = 0; back < 8; back++)
        for (int shift = 21; shift < 44; shift++)
            for (uint64_t times = 1; times <= 17; times += 16)
                freed += cuMemAddressFree(granule - back * 2 * MIB, times << shift) == CUDA_SUCCESS;
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(gpu_memset(block, 7, 4096));
    printf("address space that nobody reserved, freed: %d, %zu wrong\n", freed,
           scene_wrong_bytes(block, 4096, 7));
    REQUIRE(gpu_free(block));
    fflush(stdout);
    return 0;
}

static int elsewhere(int (*body)(void))
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0)
        _exit(body());
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void)
{
    static const size_t sizes[] = {4096, 200 * KIB, 2 * MIB, 6 * MIB};
    int rc = elsewhere(free_addresses);
    if (rc != 0)
        return rc;
    scene_start(1, 60);
    if (!scene_driver_has("cuMemMap"))
        scene_skip("no mapped memory");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        uint64_t freed = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        REQUIRE(gpu_malloc(&freed, 6 * MIB));
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
