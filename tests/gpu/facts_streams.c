/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The sections of facts.c that need streams and kernels.
 */
#include "tests/gpu/facts_streams.h"

#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

enum { SPIN_MS = 60 };

/* Functions that not every driver has. NULL where it is missing. */
#define FUNCTION(symbol, pfn) static pfn call_##symbol;
#define FUNCTIONS                                                                                  \
    FUNCTION(cuStreamSetAttribute, PFN_cuStreamSetAttribute_v11000)                                \
    FUNCTION(cuStreamGetAttribute, PFN_cuStreamGetAttribute_v11000)                                \
    FUNCTION(cuStreamCopyAttributes, PFN_cuStreamCopyAttributes_v11000)                            \
    FUNCTION(cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060)
FUNCTIONS
#undef FUNCTION

static CUmodule module;

void facts_streams_start(void)
{
#define FUNCTION(symbol, pfn) *(void **)&call_##symbol = dlsym(driver.handle, #symbol);
    FUNCTIONS
#undef FUNCTION
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
}

static CUfunction kernel(const char *name)
{
    CUfunction function;

    DRIVER_CHECK(driver.cuModuleGetFunction(&function, module, name));
    return function;
}

/* By number, as toolkits before 12.0 do not have their names. */
enum { ID_IGNORE = 0, ID_SERIALIZATION = 6, ID_DOMAIN_MAP = 9, ID_DOMAIN = 10 };

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

    return (int)call_cuLaunchKernelEx(&config, kernel("fill"), (void *[]){&block, &words, &value},
                                      NULL);
}

void section_domains(void)
{
    CUlaunchAttributeValue value;
    CUstream one, two, three;
    CUdeviceptr block;

    if (!call_cuLaunchKernelEx || !call_cuStreamSetAttribute) {
        puts("not there: a driver before 11.8");
        return;
    }
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

static uint64_t elapsed_ms(uint64_t start_ns)
{
    return (driver_now_ns() - start_ns) / 1000000;
}

/* A free beside a kernel that runs for a while on another stream; mode -1: without a capture.
 * used: the kernel's stream has used the block before. */
static void free_in_capture(const char *mode_name, int mode, size_t size, bool used)
{
    uint64_t spin_ns = (uint64_t)SPIN_MS * 1000000, words = 128, start_ns, free_ms;
    CUresult free_code, begin_code = CUDA_SUCCESS, end_code = CUDA_SUCCESS,
                        launch_code = CUDA_SUCCESS;
    uint32_t value = 5;
    CUstream busy, captured;
    CUdeviceptr block, other;
    CUgraph graph = NULL;

    DRIVER_CHECK(driver.cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&block, size));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&other, 512));
    if (used)
        DRIVER_CHECK(driver.cuLaunchKernel(kernel("fill"), 1, 1, 1, 32, 1, 1, 0, busy,
                                           (void *[]){&block, &words, &value}, NULL));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    DRIVER_CHECK(driver.cuLaunchKernel(kernel("spin"), 1, 1, 1, 32, 1, 1, 0, busy,
                                       (void *[]){&spin_ns}, NULL));
    if (mode >= 0) {
        begin_code = driver.cuStreamBeginCapture_v2(captured, (CUstreamCaptureMode)mode);
        launch_code = driver.cuLaunchKernel(kernel("fill"), 1, 1, 1, 32, 1, 1, 0, captured,
                                            (void *[]){&other, &words, &value}, NULL);
    }
    start_ns = driver_now_ns();
    free_code = driver.cuMemFree_v2(block);
    free_ms = elapsed_ms(start_ns);
    if (mode >= 0)
        end_code = driver.cuStreamEndCapture(captured, &graph);
    printf("%s, %zu bytes%s: free %d, %s; begin %d, captured launch %d, end %d, %s\n", mode_name,
           size, used ? ", used" : "", (int)free_code, free_ms >= SPIN_MS / 3 ? "waits" : "at once",
           (int)begin_code, (int)launch_code, (int)end_code, graph ? "a graph" : "no graph");
    DRIVER_CHECK(driver.cuCtxSynchronize());
    printf("  afterwards free %d\n", (int)driver.cuMemFree_v2(block));
    if (graph)
        DRIVER_CHECK(driver.cuGraphDestroy(graph));
    DRIVER_CHECK(driver.cuMemFree_v2(other));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(busy));
    DRIVER_CHECK(driver.cuStreamDestroy_v2(captured));
}

void section_capture(void)
{
    static const struct {
        const char *name;
        int mode;
    } modes[] = {{"no capture", -1},
                 {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED},
                 {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                 {"global", CU_STREAM_CAPTURE_MODE_GLOBAL}};
    static const size_t sizes[] = {512, MIB, 64 * MIB};

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            free_in_capture(modes[i].name, modes[i].mode, sizes[j], false);
            free_in_capture(modes[i].name, modes[i].mode, sizes[j], true);
        }
    }
}
