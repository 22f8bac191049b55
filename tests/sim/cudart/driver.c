/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens the driver the way NVIDIA's runtime does: one dlopen, one dlsym, then everything through
 * cuGetProcAddress. Holds the table of driver functions. Written once under pthread_once.
 */
#include "tests/sim/cudart/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Release 12 brought the form of cuGetProcAddress that also reports a status. */
#define HAS_LOOKUP_STATUS (RUNTIME_VERSION >= 12000)

static const struct query {
    const char *name;
    int version;
    int flag;
} queries[DRIVER_ENTRIES] = {
#define ENTRY(name, version, flag) {#name, version, flag},
#include "tests/sim/cudart/entries.def"
};

void (*driver_entries[DRIVER_ENTRIES])(void);

#if HAS_LOOKUP_STATUS
static PFN_cuGetProcAddress_v12000 lookup;
#else
static PFN_cuGetProcAddress_v11030 lookup;
#endif
static cudaError_t load_error = cudaErrorInsufficientDriver;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static CUresult ask(const char *symbol, void **pfn, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
#if HAS_LOOKUP_STATUS
    return lookup(symbol, pfn, version, flags, status);
#else
    (void)status;
    return lookup(symbol, pfn, version, flags);
#endif
}

static void load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return;
    void *symbol = dlsym(driver, HAS_LOOKUP_STATUS ? "cuGetProcAddress_v2" : "cuGetProcAddress");
    if (symbol == NULL)
        return;
    memcpy(&lookup, &symbol, sizeof lookup);

    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *pfn = NULL;
    ask("", &pfn, 0, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    for (int i = 0; i < DRIVER_ENTRIES; i++) {
        const struct query *query = &queries[i];
        pfn = NULL;
        if (query->version > RUNTIME_VERSION)
            continue;
        if (ask(query->name, &pfn, query->version, (cuuint64_t)query->flag, &status) ==
            CUDA_SUCCESS)
            memcpy(&driver_entries[i], &pfn, sizeof pfn);
    }
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

cudaError_t driver_lookup(const char *symbol, void **pfn, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    return error_of(ask(symbol, pfn, version, flags, status));
}
