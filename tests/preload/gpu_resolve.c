/* SPDX-License-Identifier: BSD-2-Clause */
/* The routes by which programs and language bindings find driver functions at run time. The
 * functions that find others are looked up anew for every name, so that each call tests the route.
 * State: the driver's handle, opened once. */
#include "tests/preload/gpu_resolve.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(ROUTE_ENTRY) || defined(ROUTE_ENTRY_VERSION)
#include <cuda_runtime_api.h>
#endif

/* The newest versions that this file's callers mean are those of 12.0, see cuda.h's renames. */
#define NAMES_VERSION 12000

static void *driver;

static void open_driver(void)
{
#ifdef ROUTE_GLOBAL
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
#else
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#endif
    if (driver == NULL) {
        printf("no libcuda.so.1\n");
        exit(77);
    }
}

#if !defined(ROUTE_DLSYM) && !defined(ROUTE_GLOBAL)
/* "cuMemcpyAsync_v2_ptsz" is asked for as "cuMemcpyAsync"; true if it was a per-thread name. */
static int base_name(char *base, size_t size, const char *name)
{
    snprintf(base, size, "%s", name);
    size_t length = strlen(base);
    int per_thread = length > 5 && (strcmp(base + length - 5, "_ptsz") == 0 ||
                                    strcmp(base + length - 5, "_ptds") == 0);
    if (per_thread)
        base[length - 5] = '\0';
    char *version = strrchr(base, '_');
    if (version != NULL && version[1] == 'v')
        *version = '\0';
    return per_thread;
}
#endif

static void *find(const char *name)
{
#if defined(ROUTE_DLSYM)
    return dlsym(driver, name);
#elif defined(ROUTE_GLOBAL)
    return dlsym(RTLD_DEFAULT, name);
#else
    char base[128];
    void *found = NULL;
    unsigned long long flags = base_name(base, sizeof base, name)
                                   ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                   : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
#if defined(ROUTE_ENTRY)
    /* Asked without a version, a runtime of release 13 gives this name with another signature. */
    if (strcmp(base, "cuCtxSynchronize") == 0 || strcmp(base, "cuCtxGetDevice") == 0)
        return dlsym(driver, base);
    enum cudaDriverEntryPointQueryResult status;
/* Deprecated, and what programs of before release 12.5 call. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    if (cudaGetDriverEntryPoint(base, &found, flags, &status) != cudaSuccess)
        return NULL;
#elif defined(ROUTE_ENTRY_VERSION)
    enum cudaDriverEntryPointQueryResult status;
    if (cudaGetDriverEntryPointByVersion(base, &found, NAMES_VERSION, flags, &status) !=
        cudaSuccess)
        return NULL;
#elif defined(ROUTE_PROC_V1)
    CUresult (*lookup)(const char *, void **, int, cuuint64_t);
    void *symbol = dlsym(driver, "cuGetProcAddress");
    memcpy(&lookup, &symbol, sizeof lookup);
    if (lookup == NULL || lookup(base, &found, NAMES_VERSION, flags) != CUDA_SUCCESS)
        return NULL;
#else
    CUresult (*lookup)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult status;
    void *symbol = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&lookup, &symbol, sizeof lookup);
#ifdef ROUTE_PROC_SELF
    /* The look-up function asked for itself. */
    if (lookup("cuGetProcAddress", &symbol, NAMES_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status) !=
        CUDA_SUCCESS)
        return NULL;
    memcpy(&lookup, &symbol, sizeof lookup);
#endif
    if (lookup(base, &found, NAMES_VERSION, flags, &status) != CUDA_SUCCESS)
        return NULL;
#endif
    return found;
#endif
}

void (*gpu_resolve(const char *name))(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    void *symbol = find(name);
    if (symbol == NULL) {
        printf("the driver has no %s\n", name);
        exit(1);
    }
    void (*function)(void);
    memcpy(&function, &symbol, sizeof function);
    return function;
}
