/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens the driver as NVIDIA's runtime does: one dlopen, one dlsym (two from release 13.1 on), then
 * everything through cuGetProcAddress. Holds the table of driver functions, which is written once
 * under pthread_once. */
#include "tests/sim/cudart/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Release 12 brought the form of cuGetProcAddress that also reports a status. */
#define HAS_LOOKUP_STATUS (RUNTIME_VERSION >= 12000)
/* From 12.2 on the runtimes begin with a query of the empty name. */
#define PROBES_EMPTY_NAME (RUNTIME_VERSION >= 12020)
/* From 13.1 on the runtimes first ask the driver for its version. */
#define ASKS_VERSION_FIRST (RUNTIME_VERSION >= 13010)

static const struct query {
    const char *name;
    int version;
    int flag;
    int first, last; /* releases that ask */
} queries[DRIVER_ENTRIES] = {
#define ENTRY(name, version, flag, first, last) {#name, version, flag, first, last},
#include "tests/sim/entries.def"
};

void (*driver_entries[DRIVER_ENTRIES])(void);

#if HAS_LOOKUP_STATUS
static PFN_cuGetProcAddress_v12000 lookup;
#define LOOKUP_ENTRY ENTRY_cuGetProcAddress_12000_0
#else
static PFN_cuGetProcAddress_v11030 lookup;
#define LOOKUP_ENTRY ENTRY_cuGetProcAddress_11030_0
#endif
static CUresult (*private_retain)(CUcontext *, CUdevice);
static cudaError_t load_error = cudaErrorInsufficientDriver;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static CUresult ask(const char *symbol, void **pfn, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
#if HAS_LOOKUP_STATUS
    return lookup(symbol, pfn, version, flags, status);
#else
    return lookup(symbol, pfn, version, flags);
#endif
}

/* Queries one row. The runtimes also look up the look-up function itself, and continue with the
 * answer. */
static void ask_row(int row)
{
    const struct query *query = &queries[row];
    void *pfn = NULL;
    /* The runtimes do not ask why something is missing. */
    if (ask(query->name, &pfn, query->version, (cuuint64_t)query->flag, NULL) != CUDA_SUCCESS)
        return;
    memcpy(&driver_entries[row], &pfn, sizeof pfn);
    if (pfn != NULL && row == LOOKUP_ENTRY)
        memcpy(&lookup, &pfn, sizeof lookup);
}

/* A runtime that knows the driver's version does not query newer rows. */
static void ask_all(int newest)
{
    void *pfn = NULL;
    if (PROBES_EMPTY_NAME)
        ask("", &pfn, 0, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
    else if (!HAS_LOOKUP_STATUS)
        ask("cuGetProcAddress", &pfn, 11030, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
    for (int i = 0; i < DRIVER_ENTRIES; i++)
        if (queries[i].first <= RUNTIME_VERSION && RUNTIME_VERSION <= queries[i].last &&
            queries[i].version <= newest)
            ask_row(i);
}

/* The driver's version from its exported function, or 0. */
static int version_of(void *driver)
{
    CUresult (*get_version)(int *);
    int version = 0;
    void *symbol = dlsym(driver, "cuDriverGetVersion");
    memcpy(&get_version, &symbol, sizeof get_version);
    return get_version != NULL && get_version(&version) == CUDA_SUCCESS ? version : 0;
}

static void load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return;
    int newest = ASKS_VERSION_FIRST ? version_of(driver) : RUNTIME_VERSION;
    void *symbol = dlsym(driver, HAS_LOOKUP_STATUS ? "cuGetProcAddress_v2" : "cuGetProcAddress");
    if (symbol == NULL)
        return;
    memcpy(&lookup, &symbol, sizeof lookup);
    ask_all(newest);
    symbol = dlsym(driver, "simPrimaryRetain");
    memcpy(&private_retain, &symbol, sizeof private_retain);
    int version = 0;
    if (CALL(cuDriverGetVersion, 2020, &version) != cudaSuccess ||
        version / 1000 < RUNTIME_VERSION / 1000)
        return;
    load_error = CALL(cuInit, 2000, 0);
}

cudaError_t driver_load(void)
{
    pthread_once(&load_once, load);
    return load_error;
}

cudaError_t driver_retain(CUcontext *context, CUdevice device)
{
    return private_retain != NULL ? error_of(private_retain(context, device))
                                  : CALL(cuDevicePrimaryCtxRetain, 7000, context, device);
}

cudaError_t driver_lookup(const char *symbol, void **pfn, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    return error_of(ask(symbol, pfn, version, flags, status));
}
