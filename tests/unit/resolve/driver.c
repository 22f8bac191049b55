/* SPDX-License-Identifier: BSD-2-Clause */
/* A libcuda.so.1 that exports every function of hooks.def and submit.def and tells which one was
 * called. cuGetProcAddress chooses by name, version and flag as the driver does. While it is loaded
 * it looks itself up, as the one for WSL2 does, unless RESOLVE_QUIET_DRIVER is in the environment.
 */
#include "tests/unit/resolve/probe.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static struct driver driver;

SHIM_EXPORT struct driver *driver_probe(void)
{
    return &driver;
}

static CUresult called(int base, int id, ...)
{
    driver.calls[id]++;
    if (driver.refusals) {
        driver.refusals--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (id == HOOK_cuLaunchKernel) {
        va_list args;
        va_start(args, id);
        for (int i = 0; i < 11; i++)
            driver.launch[i] =
                i >= 1 && i <= 7 ? va_arg(args, unsigned) : (uintptr_t)va_arg(args, void *);
        va_end(args);
    }
    if (id == HOOK_cuEGLStreamProducerPresentFrame) {
        va_list args;
        va_start(args, id);
        driver.presented_on = va_arg(args, const CUeglStreamConnection *);
        driver.presented = va_arg(args, CUeglFrame);
        va_end(args);
    }
    if (id == HOOK_cuLaunchKernelEx_ptsz) {
        va_list args;
        va_start(args, id);
        const CUlaunchConfig *config = driver.given = va_arg(args, const CUlaunchConfig *);
        driver.given_early = 0;
        driver.given_attributes = config ? config->numAttrs : 0;
        for (unsigned i = 0; i < driver.given_attributes; i++)
            if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
                driver.given_early +=
                    config->attrs[i].value.programmaticStreamSerializationAllowed != 0;
        va_end(args);
    }
    return (CUresult)(base + id);
}

#define LIST(...) __VA_ARGS__
#define CALLED(base, id, ...) called(base, id __VA_OPT__(, ) __VA_ARGS__)
#define DEFINE(symbol, params, args)                                                               \
    CUresult symbol params                                                                         \
    {                                                                                              \
        return CALLED(DRIVER_ANSWER, HOOK_##symbol, LIST args);                                    \
    }                                                                                              \
    static CUresult alias_##symbol params                                                          \
    {                                                                                              \
        return CALLED(DRIVER_ALIAS, HOOK_##symbol, LIST args);                                     \
    }
#define HOOK(symbol, pfn, params, args, group) DEFINE(symbol, params, args)
#define HOOKS_RETRIED
#define HOOK_RETRIED(symbol, pfn, params, args, devices) DEFINE(symbol, params, args)
#define HOOK_NAMES(symbol, pfn, params, args, devices) DEFINE(symbol, params, args)
#define HOOK_QUESTION(symbol, pfn, params, args, addr) DEFINE(symbol, params, args)
#define HOOK_WOKEN(symbol, pfn, params, args) DEFINE(symbol, params, args)
#include "shim/driver/hooks.def"
#define SUBMIT_CONFIG(config) config
#define SUBMIT(symbol, pfn, params, args, stream, flags) DEFINE(symbol, params, args)
#include "shim/driver/submit.def"

/* The old 32-bit ABI, which has no wrappers */
SHIM_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned bytesize)
{
    return CUDA_ERROR_UNKNOWN;
}

/* Of the functions that are called but not wrapped, one. */
SHIM_EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

/* What a later release brought, and a new form of what there was */
static CUresult cuDriverGetNews(void)
{
    return CUDA_SUCCESS;
}

static CUresult cuDriverGetVersion_v2(int *version, int *minor)
{
    return CUDA_SUCCESS;
}

struct entry {
    const char *pfn;
    void *address, *alias;
};

static const struct entry entries[] = {
#define ENTRY(symbol, pfn) {#pfn, (void *)symbol, (void *)alias_##symbol},
#define HOOK(symbol, pfn, params, args, group) ENTRY(symbol, pfn)
#define HOOKS_RETRIED
#define HOOK_RETRIED(symbol, pfn, params, args, devices) ENTRY(symbol, pfn)
#define HOOK_NAMES(symbol, pfn, params, args, devices) ENTRY(symbol, pfn)
#define HOOK_QUESTION(symbol, pfn, params, args, addr) ENTRY(symbol, pfn)
#define HOOK_WOKEN(symbol, pfn, params, args) ENTRY(symbol, pfn)
#define HOOK_RESOLVER(symbol, pfn, params, args) {#pfn, (void *)symbol, (void *)symbol},
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags) ENTRY(symbol, pfn)
#include "shim/driver/submit.def"
    {"PFN_cuMemAlloc_v2000", (void *)cuMemAlloc, (void *)cuMemAlloc},
    {"PFN_cuDriverGetVersion_v2020", (void *)cuDriverGetVersion, (void *)cuDriverGetVersion},
    {"PFN_cuDriverGetVersion_v14020", (void *)cuDriverGetVersion_v2, (void *)cuDriverGetVersion_v2},
    {"PFN_cuDriverGetNews_v14010", (void *)cuDriverGetNews, (void *)cuDriverGetNews},
};

/* The newest function of this name that the version knows; a per-thread one if asked for and there
 * is. */
static const struct entry *choose(const char *symbol, int version, bool per_thread)
{
    const struct entry *best = NULL;
    int best_version = -1;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        char name[128], suffix[16] = "";
        int since;
        snprintf(name, sizeof name, "PFN_%s_v%%d%%15s", symbol);
        if (sscanf(entries[i].pfn, name, &since, suffix) < 1 || since > version)
            continue;
        bool pt = suffix[0];
        if (pt && !per_thread)
            continue;
        int rank = since + (pt ? 1000000 : 0);
        if (rank > best_version) {
            best = &entries[i];
            best_version = rank;
        }
    }
    return best;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    if (version > 14050)
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry *e =
        choose(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    const struct entry *legacy = driver.aliases ? choose(symbol, version, false) : NULL;
    *pfn = legacy ? legacy->alias : e ? e->address : NULL;
    if (status)
        *status = e ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    CUresult rc = cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
    return rc == CUDA_SUCCESS && !*pfn ? CUDA_ERROR_NOT_FOUND : rc;
}

__attribute__((constructor)) static void look_oneself_up(void)
{
    if (getenv("RESOLVE_QUIET_DRIVER"))
        return;
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    driver.found_by_constructor = self ? dlsym(self, "cuMemAlloc_v2") : NULL;
}
