/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Opening the driver, and what to do when one of its calls fails. See driver.h.
 */
#include "tests/gpu/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct driver driver;

void driver_check(CUresult result, const char *what, const char *file, int line)
{
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return;
    driver.cuGetErrorName(result, &name);
    fprintf(stderr, "%s:%d: %s: %s (%d)\n", file, line, what, name ? name : "?", (int)result);
    _Exit(2);
}

void driver_open(void)
{
    static const char *const paths[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                                        "/usr/lib/wsl/lib/libcuda.so.1"};

    for (size_t i = 0; i < sizeof paths / sizeof *paths && !driver.handle; i++)
        driver.handle = dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL);
    if (!driver.handle) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(EXIT_SKIP);
    }
#define DRIVER_FUNCTION(symbol)                                                                    \
    *(void **)&driver.symbol = dlsym(driver.handle, #symbol);                                      \
    if (!driver.symbol) {                                                                          \
        fprintf(stderr, "the driver lacks %s\n", #symbol);                                         \
        exit(EXIT_SKIP);                                                                           \
    }
#include "tests/gpu/driver.def"
#undef DRIVER_FUNCTION
}

CUcontext driver_start(int ordinal)
{
    CUcontext context;
    CUdevice device;
    CUresult result;

    driver_open();
    result = driver.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = driver.cuDeviceGet(&device, ordinal);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "no CUDA device %d (error %d)\n", ordinal, (int)result);
        exit(EXIT_SKIP);
    }
    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&context, device));
    DRIVER_CHECK(driver.cuCtxSetCurrent(context));
    return context;
}

uint64_t driver_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
