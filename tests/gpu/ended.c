/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver answers where memory of an ended life of the primary context is used in the next
 * life: prints one fact a line, without addresses. Numbers are CUresult codes. `ended SECTION..`
 * prints some of:
 *   life      one thread: allocate, reset, retain, use the old address
 *   reserved  addresses that the program reserved, where nothing is mapped
 *   threads   three threads retain, allocate, write and free beside resets in a fourth
 * Each case of the first two runs in a child of its own, because its error may stay.
 */
#include "tests/gpu/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { CODES = 1000, RESETS = 300, THREADS = 3 };
#define THREADS_NS UINT64_C(20000000000)

static CUdevice device;
static unsigned char host[64 * 1024];

static void begin_life(void)
{
    CUcontext context;

    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&context, device));
    DRIVER_CHECK(driver.cuCtxSetCurrent(context));
}

static void next_life(void)
{
    DRIVER_CHECK(driver.cuDevicePrimaryCtxReset_v2(device));
    begin_life();
}

/* --- uses of an address ---------------------------------------------------------------------- */

static int use_memset(CUdeviceptr at)
{
    return (int)driver.cuMemsetD32_v2(at, 7, 64);
}

static int use_memset_async(CUdeviceptr at)
{
    return (int)driver.cuMemsetD32Async(at, 7, 64, CU_STREAM_LEGACY);
}

static int use_to_device(CUdeviceptr at)
{
    return (int)driver.cuMemcpyHtoD_v2(at, host, 256);
}

static int use_to_device_large(CUdeviceptr at)
{
    return (int)driver.cuMemcpyHtoD_v2(at, host, sizeof host);
}

static int use_to_device_async(CUdeviceptr at)
{
    return (int)driver.cuMemcpyHtoDAsync_v2(at, host, 256, CU_STREAM_LEGACY);
}

static int use_to_host(CUdeviceptr at)
{
    return (int)driver.cuMemcpyDtoH_v2(host, at, 256);
}

static int use_to_host_async(CUdeviceptr at)
{
    return (int)driver.cuMemcpyDtoHAsync_v2(host, at, 256, CU_STREAM_LEGACY);
}

static int use_between(CUdeviceptr at)
{
    CUdeviceptr here;
    int code;

    DRIVER_CHECK(driver.cuMemAlloc_v2(&here, 4 * KIB));
    code = (int)driver.cuMemcpyDtoD_v2(here, at, 256);
    driver.cuMemFree_v2(here);
    return code;
}

static int use_free(CUdeviceptr at)
{
    return (int)driver.cuMemFree_v2(at);
}

static const struct use {
    const char *name;
    int (*use)(CUdeviceptr at);
} uses[] = {{"memset", use_memset},
            {"memset async", use_memset_async},
            {"copy to device", use_to_device},
            {"copy of 64 KiB to device", use_to_device_large},
            {"copy to device async", use_to_device_async},
            {"copy to host", use_to_host},
            {"copy to host async", use_to_host_async},
            {"copy between", use_between},
            {"free", use_free}};

enum { USES = sizeof uses / sizeof *uses };

/* What the use gives, and whether anything of it stays. */
static void try_use(const char *what, const struct use *u, CUdeviceptr at)
{
    CUdeviceptr other = 0;
    int code = u->use(at), sync = (int)driver.cuCtxSynchronize();
    int alloc = (int)driver.cuMemAlloc_v2(&other, 3 * MIB);
    int set = alloc ? alloc : (int)driver.cuMemsetD32_v2(other, 1, 64);
    int last = (int)driver.cuCtxSynchronize();

    printf("%s, %s: %d, sync %d; then alloc %d, memset %d, sync %d: %s\n", what, u->name, code,
           sync, alloc, set, last, alloc || set || last ? "STICKY" : "does not stick");
}

/* Runs one case in a child, before this process asks the driver for anything. */
static void in_child(void (*body)(size_t a, size_t b), size_t a, size_t b)
{
    int status = 0;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        driver_open();
        if (driver.cuInit(0) != CUDA_SUCCESS || driver.cuDeviceGet(&device, 0) != CUDA_SUCCESS)
            _exit(EXIT_SKIP);
        begin_life();
        body(a, b);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        exit(2);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIP)
        exit(EXIT_SKIP);
    if (status)
        printf("a case ended with wait status %#x\n", (unsigned)status);
}

/* --- life ------------------------------------------------------------------------------------ */

static const size_t sizes[] = {512, 64 * KIB, 3 * MIB, 64 * MIB};

/* Before and after the next life has its first memory. */
static void life_case(size_t use, size_t which)
{
    static const char *const kinds[] = {"nothing allocated since", "4 KiB allocated since",
                                        "3 MiB allocated since"};
    CUdeviceptr old, new;
    size_t size = sizes[which / 3], kind = which % 3;
    char what[128];

    DRIVER_CHECK(driver.cuMemAlloc_v2(&old, size));
    DRIVER_CHECK(driver.cuMemsetD32_v2(old, 1, size / 4));
    next_life();
    if (kind > 0)
        DRIVER_CHECK(driver.cuMemAlloc_v2(&new, kind == 1 ? 4 * KIB : 3 * MIB));
    snprintf(what, sizeof what, "%zu bytes of the last life, %s%s", size, kinds[kind],
             kind && new == old ? ", the same address" : "");
    try_use(what, &uses[use], old);
}

static void section_life(void)
{
    for (size_t which = 0; which < 3 * sizeof sizes / sizeof *sizes; which++)
        for (size_t use = 0; use < USES; use++)
            in_child(life_case, use, which);
}

/* --- reserved -------------------------------------------------------------------------------- */

static void map(CUdeviceptr at, size_t size, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    DRIVER_CHECK(driver.cuMemCreate(handle, size, &prop, 0));
    DRIVER_CHECK(driver.cuMemMap(at, size, 0, *handle, 0));
    DRIVER_CHECK(driver.cuMemSetAccess(at, size, &access, 1));
}

enum { NEVER_MAPPED, BESIDE_MAPPED, UNMAPPED, UNRESERVED, WILD, LAST_LIFE, PLACES };

static void reserved_case(size_t use, size_t place)
{
    static const char *const names[] = {"reserved, nothing mapped there",
                                        "reserved, beside what is mapped",
                                        "reserved, no longer mapped",
                                        "no longer reserved",
                                        "never anybody's",
                                        "mapped since the last life"};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base, at;

    DRIVER_CHECK(driver.cuMemAddressReserve(&base, 1024 * MIB, 0, 0, 0));
    at = base;
    if (place != NEVER_MAPPED)
        map(base, 2 * MIB, &handle);
    if (place == BESIDE_MAPPED)
        at = base + 16 * MIB;
    if (place == UNMAPPED || place == UNRESERVED) {
        DRIVER_CHECK(driver.cuMemsetD32_v2(base, 1, 64));
        DRIVER_CHECK(driver.cuCtxSynchronize());
        DRIVER_CHECK(driver.cuMemUnmap(base, 2 * MIB));
        DRIVER_CHECK(driver.cuMemRelease(handle));
    }
    if (place == UNRESERVED)
        DRIVER_CHECK(driver.cuMemAddressFree(base, 1024 * MIB));
    if (place == WILD)
        at = 0x123400000000;
    if (place == LAST_LIFE)
        next_life();
    try_use(names[place], &uses[use], at);
}

static void section_reserved(void)
{
    for (size_t place = 0; place < PLACES; place++)
        for (size_t use = 0; use < USES; use++)
            in_child(reserved_case, use, place);
}

/* --- threads --------------------------------------------------------------------------------- */

static atomic_bool stop;
static atomic_uint allocs[CODES], writes[CODES], frees[CODES];

static bool is_lasting(unsigned code)
{
    return code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_LAUNCH_FAILED;
}

static void *use_memory(void *unused)
{
    while (!stop) {
        CUcontext context;

        if (driver.cuDevicePrimaryCtxRetain(&context, device))
            continue;
        driver.cuCtxSetCurrent(context);
        for (size_t i = 0; i < 20; i++) {
            CUdeviceptr at = 0;
            CUresult code = driver.cuMemAlloc_v2(&at, (1 + i % 5) * MIB);

            allocs[code % CODES]++;
            if (code)
                continue;
            writes[driver.cuMemsetD32_v2(at, 7, 1024) % CODES]++;
            frees[driver.cuMemFree_v2(at) % CODES]++;
        }
        driver.cuDevicePrimaryCtxRelease_v2(device);
    }
    return unused;
}

static void print_counts(const char *what, const atomic_uint *counts)
{
    printf("%s:", what);
    for (unsigned code = 0; code < CODES; code++)
        if (counts[code])
            printf(" %u x code %u", counts[code], code);
    printf("\n");
}

static void threads_case(size_t a, size_t b)
{
    uint64_t begin_ns = driver_now_ns();
    pthread_t threads[THREADS];
    CUcontext context;
    CUdeviceptr at = 0;
    int resets = 0, code, set;
    bool lasting = false;

    (void)a, (void)b;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, use_memory, NULL);
    while (resets < RESETS && !lasting && driver_now_ns() - begin_ns < THREADS_NS) {
        usleep(500);
        driver.cuDevicePrimaryCtxReset_v2(device);
        driver.cuDevicePrimaryCtxRetain(&context, device);
        resets++;
        for (unsigned i = 0; i < CODES; i++)
            lasting |= is_lasting(i) && (allocs[i] || writes[i] || frees[i]);
    }
    stop = true;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("threads beside %d resets\n", resets);
    print_counts("  allocations", allocs);
    print_counts("  writes", writes);
    print_counts("  frees", frees);
    code = (int)driver.cuDevicePrimaryCtxRetain(&context, device);
    driver.cuCtxSetCurrent(context);
    code = code ? code : (int)driver.cuMemAlloc_v2(&at, MIB);
    set = code ? code : (int)driver.cuMemsetD32_v2(at, 7, 64);
    printf("  afterwards alloc %d, memset %d, sync %d\n", code, set,
           (int)driver.cuCtxSynchronize());
    code = (int)driver.cuDevicePrimaryCtxReset_v2(device);
    set = (int)driver.cuDevicePrimaryCtxRetain(&context, device);
    driver.cuCtxSetCurrent(context);
    printf("  after one more reset (%d, retain %d) alloc %d, sync %d\n", code, set,
           (int)driver.cuMemAlloc_v2(&at, MIB), (int)driver.cuCtxSynchronize());
    printf("  an error that lasts: %s\n", lasting ? "YES" : "none");
}

static void section_threads(void)
{
    for (int round = 0; round < 3; round++)
        in_child(threads_case, 0, 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*body)(void);
    } sections[] = {
        {"life", section_life}, {"reserved", section_reserved}, {"threads", section_threads}};

    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        bool wanted = argc < 2;

        for (int j = 1; j < argc; j++)
            wanted |= !strcmp(argv[j], sections[i].name);
        if (wanted)
            sections[i].body();
    }
    return 0;
}
