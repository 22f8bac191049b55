/* SPDX-License-Identifier: BSD-2-Clause */
/* The library that injection.c has the driver load. No link to the driver: everything is looked up.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjection(void);
EXPORT int injection_starts(void);
EXPORT int injection_failures(void);
EXPORT int injection_allocates(void);

static int starts, failures;

int injection_starts(void)
{
    return starts;
}

int injection_failures(void)
{
    return failures;
}

/* Called by the driver, in the middle of the program's first call. */
int InitializeInjection(void)
{
    static const char *const names[] = {"cuMemAlloc_v2",  "cuMemFree_v2",    "cuGetProcAddress_v2",
                                        "cuLaunchKernel", "cuCtxGetCurrent", "cuDriverGetVersion"};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    starts++;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = driver != NULL ? dlsym(driver, names[i]) : NULL;
        failures += symbol == NULL || symbol != dlsym(driver, names[i]);
    }
    failures += dlsym(RTLD_DEFAULT, "malloc") == NULL || dlsym(RTLD_NEXT, "free") == NULL;
    failures += dlsym(RTLD_DEFAULT, "cuNoSuchThing") != NULL;
    return 1;
}

static void *allocate(void *context)
{
    CUresult (*retain)(CUcontext *, CUdevice), (*set)(CUcontext), (*release)(CUdevice);
    CUresult (*alloc)(CUdeviceptr *, size_t), (*give)(CUdeviceptr);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbols[] = {dlsym(driver, "cuDevicePrimaryCtxRetain"), dlsym(driver, "cuCtxSetCurrent"),
                       dlsym(driver, "cuDevicePrimaryCtxRelease_v2"),
                       dlsym(driver, "cuMemAlloc_v2"), dlsym(driver, "cuMemFree_v2")};
    CUcontext primary = NULL;
    CUdeviceptr block = 0;
    int *failed = context;
    memcpy(&retain, &symbols[0], sizeof retain);
    memcpy(&set, &symbols[1], sizeof set);
    memcpy(&release, &symbols[2], sizeof release);
    memcpy(&alloc, &symbols[3], sizeof alloc);
    memcpy(&give, &symbols[4], sizeof give);
    *failed = retain(&primary, 0) != CUDA_SUCCESS || set(primary) != CUDA_SUCCESS;
    for (int i = 0; i < 20 && !*failed; i++)
        *failed += alloc(&block, 100000) != CUDA_SUCCESS || give(block) != CUDA_SUCCESS;
    *failed += set(NULL) != CUDA_SUCCESS || release(0) != CUDA_SUCCESS;
    return NULL;
}

int injection_allocates(void)
{
    pthread_t thread;
    int failed = 1;
    if (pthread_create(&thread, NULL, allocate, &failed) == 0)
        pthread_join(thread, NULL);
    return failed;
}
