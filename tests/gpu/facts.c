/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver says of memory of cuMemAlloc, and does with it: prints one fact a line, without
 * addresses, so that two runs can be compared. `facts SECTION..` prints some of:
 *   attributes  every pointer attribute of blocks of four sizes, at three offsets; of mappings only
 *               what holds of them
 *   managed     the calls that are for managed memory
 *   domains     stream and launch attributes of memory synchronisation domains
 *   idle        whether idle memory of a stream-ordered pool serves other calls by itself
 * Numbers behind the names of calls are CUresult codes.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

enum { NUMBERS_MAX = 256 };

/* Functions that not every driver has. NULL where it is missing. */
#define FUNCTION(symbol, pfn) static pfn call_##symbol;
#define FUNCTIONS                                                                                  \
    FUNCTION(cuPointerGetAttribute, PFN_cuPointerGetAttribute_v4000)                               \
    FUNCTION(cuPointerGetAttributes, PFN_cuPointerGetAttributes_v7000)                             \
    FUNCTION(cuCtxGetCurrent, PFN_cuCtxGetCurrent_v4000)                                           \
    FUNCTION(cuMemAdvise_v2, PFN_cuMemAdvise_v12020)                                               \
    FUNCTION(cuMemPrefetchAsync_v2, PFN_cuMemPrefetchAsync_v12020)                                 \
    FUNCTION(cuMemRangeGetAttribute, PFN_cuMemRangeGetAttribute_v8000)                             \
    FUNCTION(cuMemRangeGetAttributes, PFN_cuMemRangeGetAttributes_v8000)                           \
    FUNCTION(cuStreamSetAttribute, PFN_cuStreamSetAttribute_v11000)                                \
    FUNCTION(cuStreamGetAttribute, PFN_cuStreamGetAttribute_v11000)                                \
    FUNCTION(cuStreamCopyAttributes, PFN_cuStreamCopyAttributes_v11000)                            \
    FUNCTION(cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060)
FUNCTIONS
#undef FUNCTION

static void find_functions(void)
{
#define FUNCTION(symbol, pfn) *(void **)&call_##symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
}

/* The how manyth number of its kind this is, from 1 on: numbers themselves differ from run to run.
 */
static unsigned numbered(uint64_t *numbers, uint64_t number)
{
    unsigned i = 0;

    while (i < NUMBERS_MAX - 1 && numbers[i] && numbers[i] != number)
        i++;
    numbers[i] = number;
    return i + 1;
}

/* --- attributes ----------------------------------------------------------------------------- */

static const struct attribute {
    const char *name;
    CUpointer_attribute which;
    enum { WORD, CONTEXT, ADDRESS, NUMBER, MAPPING } kind; /* MAPPING: see print_mapping */
} attributes[] = {
    {"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, CONTEXT},
    {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, WORD},
    {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ADDRESS},
    {"HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, WORD},
    {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, WORD},
    {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID, NUMBER},
    {"IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, WORD},
    {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, WORD},
    {"LEGACY_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, WORD},
    {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ADDRESS},
    {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, WORD},
    {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, WORD},
    {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, WORD},
    {"GPU_DIRECT_RDMA", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, WORD},
    {"ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, WORD},
    {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, WORD},
    {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, MAPPING},
    {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, MAPPING},
    {"MEMORY_BLOCK_ID", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, MAPPING},
    {"HW_DECOMPRESS", (CUpointer_attribute)21, WORD},
};

enum { ATTRIBUTES = sizeof attributes / sizeof *attributes };

static void print_value(const struct attribute *a, uint64_t value, CUdeviceptr block)
{
    static uint64_t numbers[ATTRIBUTES][NUMBERS_MAX];
    CUcontext current;

    switch (a->kind) {
    case CONTEXT:
        call_cuCtxGetCurrent(&current);
        printf("%s", !value                                  ? "none"
                     : value == (uint64_t)(uintptr_t)current ? "current"
                                                             : "another");
        break;
    case ADDRESS:
        if (value)
            printf("block%+" PRId64, (int64_t)(value - block));
        else
            printf("none");
        break;
    case NUMBER:
        printf("#%u", numbered(numbers[a - attributes], value));
        break;
    case WORD:
        printf("%" PRIu64, value);
        break;
    case MAPPING:
        printf("%s", value ? "some" : "none");
        break;
    }
}

/* One attribute at a time, then all of them at once; offset is where the pointer points to. Of a
 * freed block HOST_POINTER is not printed: what the driver writes there changes from run to run. */
static void print_attributes(const char *what, CUdeviceptr block, size_t offset)
{
    uint64_t values[ATTRIBUTES] = {0};
    CUpointer_attribute asked[ATTRIBUTES];
    void *places[ATTRIBUTES];
    CUresult rc;

    for (int i = 0; i < ATTRIBUTES; i++) {
        uint64_t value = 0;

        rc = call_cuPointerGetAttribute(&value, attributes[i].which, block + offset);
        printf("%s +%zu %s: %d ", what, offset, attributes[i].name, (int)rc);
        if (rc == CUDA_SUCCESS)
            print_value(&attributes[i], value,
                        attributes[i].which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? block + offset
                                                                                   : block);
        printf("\n");
        asked[i] = attributes[i].which;
        places[i] = &values[i];
    }
    rc = call_cuPointerGetAttributes(ATTRIBUTES, asked, places, block + offset);
    printf("%s +%zu together: %d", what, offset, (int)rc);
    for (int i = 0; i < ATTRIBUTES && rc == CUDA_SUCCESS; i++) {
        if (attributes[i].which == CU_POINTER_ATTRIBUTE_HOST_POINTER && !values[0])
            continue; /* no context: freed */
        printf(" ");
        print_value(&attributes[i], values[i],
                    attributes[i].which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? block + offset
                                                                               : block);
    }
    printf("\n");
}

struct mapping {
    uint64_t base, size, id;
};

static struct mapping mapping_at(CUdeviceptr address)
{
    struct mapping m = {0};

    DRIVER_CHECK(
        call_cuPointerGetAttribute(&m.base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address));
    DRIVER_CHECK(call_cuPointerGetAttribute(&m.size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address));
    DRIVER_CHECK(call_cuPointerGetAttribute(&m.id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address));
    return m;
}

/* The mapping covers the block, in whole pages of 2 MiB. Each byte of the block has the same
 * mapping and the same number of its memory. Large blocks have memory of their own. */
static void print_mapping(const char *what, CUdeviceptr block, size_t size, uint64_t other_id)
{
    struct mapping m = mapping_at(block);
    bool one_mapping = true, one_id = true;

    for (int i = 1; i <= 16; i++) {
        struct mapping there = mapping_at(block + size * i / 16 - 1);

        one_mapping &= there.base == m.base && there.size == m.size;
        one_id &= there.id == m.id;
    }
    printf("%s: the mapping %s it, in %s pages, %s; %s for its memory%s\n", what,
           m.base <= block && block + size <= m.base + m.size ? "covers" : "misses",
           m.base % (2 * MIB) || m.size % (2 * MIB) ? "other" : "whole",
           one_mapping ? "one" : "several", one_id ? "one number" : "several numbers",
           size < 2 * MIB     ? ""
           : m.id == other_id ? ", another block's"
                              : ", its own");
}

static const size_t attribute_sizes[] = {512, 32 * KIB, 3 * MIB, GIB};

static void section_attributes(void)
{
    const size_t *sizes = attribute_sizes;
    char what[64];

    for (size_t i = 0; i < sizeof attribute_sizes / sizeof *attribute_sizes; i++) {
        CUdeviceptr first, second;
        uint64_t id;

        DRIVER_CHECK(driver.cuMemAlloc_v2(&first, sizes[i]));
        DRIVER_CHECK(driver.cuMemAlloc_v2(&second, sizes[i]));
        snprintf(what, sizeof what, "%zu bytes", sizes[i]);
        id = mapping_at(first).id;
        print_mapping(what, first, sizes[i], 0);
        print_attributes(what, first, 0);
        print_attributes(what, first, sizes[i] / 2 + 4);
        print_attributes(what, first, sizes[i] - 1);
        snprintf(what, sizeof what, "%zu bytes, second", sizes[i]);
        print_attributes(what, second, 0);
        print_mapping(what, second, sizes[i], id);
        DRIVER_CHECK(driver.cuMemFree_v2(first));
        DRIVER_CHECK(driver.cuMemAlloc_v2(&first, sizes[i]));
        snprintf(what, sizeof what, "%zu bytes, again", sizes[i]);
        print_attributes(what, first, 0);
        print_mapping(what, first, sizes[i], id);
        DRIVER_CHECK(driver.cuMemFree_v2(first));
        DRIVER_CHECK(driver.cuMemFree_v2(second));
        snprintf(what, sizeof what, "%zu bytes, freed", sizes[i]);
        print_attributes(what, first, 0);
    }
}

/* --- managed -------------------------------------------------------------------------------- */

static void print_range_attributes(CUdeviceptr block, size_t size)
{
    int read_mostly = -77, location = -77;
    void *places[] = {&read_mostly, &location};
    size_t bytes[] = {4, 4};
    CUmem_range_attribute asked[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                     CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    CUresult rc;

    if (!call_cuMemRangeGetAttribute || !call_cuMemRangeGetAttributes)
        return; /* the simulated driver */
    printf("%zu bytes, cuMemRangeGetAttribute 1 to 8:", size);
    for (int which = 1; which <= 8; which++) {
        int words[2] = {-77, -77};

        rc = call_cuMemRangeGetAttribute(words, which == 3 ? 8 : 4, (CUmem_range_attribute)which,
                                         block, size);
        printf(" %d (%d, %d)", (int)rc, words[0], words[1]);
    }
    rc = call_cuMemRangeGetAttributes(places, bytes, asked, 2, block, size);
    printf("\n%zu bytes, cuMemRangeGetAttributes: %d (%d, %d)\n", size, (int)rc, read_mostly,
           location);
}

static void section_managed(void)
{
    static const size_t sizes[] = {512, 3 * MIB, 64 * MIB};
    CUstream stream;

    if (!call_cuMemAdvise_v2 || !call_cuMemPrefetchAsync_v2) {
        puts("not there: a driver before 12.2");
        return;
    }
    DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
        CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
        CUdeviceptr block;

        DRIVER_CHECK(driver.cuMemAlloc_v2(&block, size));
        printf("%zu bytes, cuMemAdvise 1 to 6:", size);
        for (int advice = 1; advice <= 6; advice++)
            printf(" %d", (int)call_cuMemAdvise_v2(block, size, (CUmem_advise)advice, device));
        printf(", of the second half:");
        for (int advice = 1; advice <= 6; advice++)
            printf(" %d", (int)call_cuMemAdvise_v2(block + size / 2, size / 2, (CUmem_advise)advice,
                                                   device));
        printf("\n");
        print_range_attributes(block, size);
        printf("%zu bytes, cuMemPrefetchAsync to the device: %d\n", size,
               (int)call_cuMemPrefetchAsync_v2(block, size, device, 0, stream));
        printf("%zu bytes, cuMemPrefetchAsync to the host: %d\n", size,
               (int)call_cuMemPrefetchAsync_v2(block, size, host, 0, stream));
        printf("%zu bytes, afterwards: %d\n", size, (int)driver.cuCtxSynchronize());
        DRIVER_CHECK(driver.cuMemFree_v2(block));
        printf("%zu bytes, freed, cuMemAdvise: %d\n", size,
               (int)call_cuMemAdvise_v2(block, size, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
        printf("%zu bytes, freed, cuMemPrefetchAsync: %d\n", size,
               (int)call_cuMemPrefetchAsync_v2(block, size, device, 0, stream));
        print_range_attributes(block, size);
    }
    DRIVER_CHECK(driver.cuStreamDestroy_v2(stream));
}

/* --- domains -------------------------------------------------------------------------------- */

/* By number, as toolkits before 12.0 do not have their names. */
enum { ID_IGNORE = 0, ID_SERIALIZATION = 6, ID_DOMAIN_MAP = 9, ID_DOMAIN = 10 };

static CUfunction fill;

static void print_domains(const char *what, CUstream stream)
{
    CUlaunchAttributeValue map, domain;

    memset(&map, 0x77, sizeof map);
    memset(&domain, 0x77, sizeof domain);
    int map_code = (int)call_cuStreamGetAttribute(stream, (CUlaunchAttributeID)ID_DOMAIN_MAP, &map);
    int domain_code =
        (int)call_cuStreamGetAttribute(stream, (CUlaunchAttributeID)ID_DOMAIN, &domain);

    printf("%s: map %d (%u, %u), domain %d (%d)\n", what, map_code, map.memSyncDomainMap.default_,
           map.memSyncDomainMap.remote, domain_code, (int)domain.memSyncDomain);
}

static int set_map(CUstream stream, unsigned char first, unsigned char second)
{
    CUlaunchAttributeValue value = {.memSyncDomainMap = {first, second}};

    return (int)call_cuStreamSetAttribute(stream, (CUlaunchAttributeID)ID_DOMAIN_MAP, &value);
}

static int set_domain(CUstream stream, int domain)
{
    CUlaunchAttributeValue value = {.memSyncDomain = (CUlaunchMemSyncDomain)domain};

    return (int)call_cuStreamSetAttribute(stream, (CUlaunchAttributeID)ID_DOMAIN, &value);
}

static void print_stream(const char *what, CUstream stream)
{
    static const unsigned char maps[][2] = {{0, 1}, {1, 0}, {3, 2}, {200, 0}};

    print_domains(what, stream);
    for (int domain = 1; domain <= 2; domain++)
        printf("%s: set domain %d: %d\n", what, domain, set_domain(stream, domain));
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        printf("%s: set map (%u, %u): %d\n", what, maps[i][0], maps[i][1],
               set_map(stream, maps[i][0], maps[i][1]));
    print_domains(what, stream);
}

static int launch_with(CUstream stream, CUlaunchAttribute attribute, CUdeviceptr block)
{
    uint64_t words = 128;
    uint32_t value = 5;
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attribute,
                             .numAttrs = 1};

    return (int)call_cuLaunchKernelEx(&config, fill, (void *[]){&block, &words, &value}, NULL);
}

static void section_domains(void)
{
    CUlaunchAttributeValue value;
    CUstream one, two, three;
    CUdeviceptr block;
    CUmodule module;

    if (!call_cuLaunchKernelEx || !call_cuStreamSetAttribute) {
        puts("not there: a driver before 11.8");
        return;
    }
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill, module, "fill"));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, 512));
    DRIVER_CHECK(driver.cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamCreate(&three, CU_STREAM_NON_BLOCKING));
    print_stream("a stream", one);
    printf("copy its attributes: %d, to itself: %d\n", (int)call_cuStreamCopyAttributes(two, one),
           (int)call_cuStreamCopyAttributes(one, one));
    print_domains("the copy", two);
    printf("launch on it: %d, on the copy: %d\n",
           launch_with(one, (CUlaunchAttribute){.id = 0}, block),
           launch_with(two, (CUlaunchAttribute){.id = 0}, block));
    print_stream("the legacy stream", CU_STREAM_LEGACY);
    print_stream("the per-thread stream", CU_STREAM_PER_THREAD);
    print_domains("the stream NULL", NULL);
    for (int id = 0; id <= 16; id++) {
        CUlaunchAttribute attribute = {.id = (CUlaunchAttributeID)id};

        memset(&value, 0, sizeof value);
        if (id == ID_SERIALIZATION)
            value.programmaticStreamSerializationAllowed = 1;
        printf("attribute %d of a stream: get %d", id,
               (int)call_cuStreamGetAttribute(three, attribute.id, &value));
        memset(&value, 0, sizeof value);
        if (id == ID_SERIALIZATION)
            value.programmaticStreamSerializationAllowed = 1;
        printf(", set %d", (int)call_cuStreamSetAttribute(three, attribute.id, &value));
        if (id == ID_IGNORE || id == ID_SERIALIZATION || id == ID_DOMAIN || id == ID_DOMAIN_MAP) {
            attribute.value = value;
            if (id == ID_DOMAIN)
                attribute.value.memSyncDomain = (CUlaunchMemSyncDomain)1;
            printf(", launch with it %d", launch_with(three, attribute, block));
        }
        printf("\n");
    }
    printf("all of it done: %d\n", (int)driver.cuCtxSynchronize());
    DRIVER_CHECK(driver.cuStreamDestroy_v2(one));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(two));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(three));
    DRIVER_CHECK(driver.cuMemFree_v2(block));
}

/* The driver's own pool has so many bytes, idle. */
static void fill_pool(size_t size_bytes)
{
    uint64_t all = UINT64_MAX;
    CUmemoryPool pool;
    CUdeviceptr block;

    DRIVER_CHECK(driver.cuDeviceGetDefaultMemPool(&pool, 0));
    DRIVER_CHECK(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    DRIVER_CHECK(driver.cuMemAllocAsync(&block, size_bytes, NULL));
    DRIVER_CHECK(driver.cuMemFreeAsync(block, NULL));
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

/* Of 60 % of what is free each: the pool and the call have no room beside each other. */
static void section_idle(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr block;
    size_t free_bytes, left_bytes, total_bytes, size_bytes;
    CUresult rc;

    DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
    size_bytes = free_bytes / 10 * 6 / (2 * MIB) * (2 * MIB);
    fill_pool(size_bytes);
    DRIVER_CHECK(driver.cuMemGetInfo_v2(&left_bytes, &total_bytes));
    printf("idle in a stream-ordered pool: free memory %s; ",
           left_bytes + size_bytes / 2 < free_bytes ? "is without it" : "has it");
    rc = driver.cuMemAlloc_v2(&block, size_bytes);
    printf("cuMemAlloc %d, ", (int)rc);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuMemFree_v2(block));
    fill_pool(size_bytes);
    rc = driver.cuMemCreate(&handle, size_bytes, &prop, 0);
    printf("cuMemCreate %d\n", (int)rc);
    if (rc == CUDA_SUCCESS)
        DRIVER_CHECK(driver.cuMemRelease(handle));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(void);
    } sections[] = {{"attributes", section_attributes},
                    {"managed", section_managed},
                    {"domains", section_domains},
                    {"idle", section_idle}};

    driver_start(0);
    find_functions();
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        bool wanted = argc < 2;

        for (int j = 1; j < argc; j++)
            wanted |= !strcmp(argv[j], sections[i].name);
        if (wanted)
            sections[i].body();
    }
    return 0;
}
