/* SPDX-License-Identifier: BSD-2-Clause */
/* The context that a runtime call works in. If the program made a context current through the
 * driver, the runtime uses it. Otherwise it retains the primary context of the thread's device at
 * the first call that needs it. `primary_lock` guards the retained contexts; thread-local state
 * needs no lock. */
#include "tests/sim/cudart/cudart.h"

#include <pthread.h>

#define MAX_DEVICES 64

static struct {
    CUcontext context;
    unsigned resets;
} primaries[MAX_DEVICES];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local int thread_device;
static _Thread_local unsigned thread_resets; /* of the device, when its context was made current */
static _Thread_local CUcontext thread_context; /* the primary context that this file made current */

static cudaError_t retain(int device, CUcontext *context, unsigned *resets)
{
    if (device < 0 || device >= MAX_DEVICES)
        return cudaErrorInvalidDevice;
    pthread_mutex_lock(&primary_lock);
    cudaError_t error = cudaSuccess;
    if (primaries[device].context == NULL)
        error = driver_retain(&primaries[device].context, device);
    *context = primaries[device].context;
    *resets = primaries[device].resets;
    pthread_mutex_unlock(&primary_lock);
    return error;
}

static unsigned resets_of(int device)
{
    pthread_mutex_lock(&primary_lock);
    unsigned resets = primaries[device].resets;
    pthread_mutex_unlock(&primary_lock);
    return resets;
}

static cudaError_t make_current(int device)
{
    CUcontext context = NULL;
    unsigned resets = 0;
    TRY(retain(device, &context, &resets));
    TRY(CALL(cuCtxSetCurrent, 4000, context));
    thread_context = context;
    thread_resets = resets;
    return cudaSuccess;
}

/* Older runtimes make the primary context current as it is. The next call that needs it brings it
 * to life. Only a retain gives its handle. */
static cudaError_t make_current_later(int device)
{
    CUcontext context = NULL;
    cudaError_t error = driver_retain(&context, device);
    if (error == cudaSuccess)
        error = CALL_AS(PFN_cuDevicePrimaryCtxRelease_v11000, cuDevicePrimaryCtxRelease, 7000, 0,
                        device);
    if (error == cudaSuccess)
        error = CALL(cuCtxSetCurrent, 4000, context);
    thread_context = context;
    thread_resets = resets_of(device) - 1;
    return error;
}

static cudaError_t enter(void)
{
    TRY(driver_load());
    CUcontext current = NULL;
    TRY(CALL(cuCtxGetCurrent, 4000, &current));
    /* A reset destroys the primary context under every thread that has it current. */
    bool stale = current == thread_context && thread_context != NULL &&
                 thread_resets != resets_of(thread_device);
    return current == NULL || stale ? make_current(thread_device) : cudaSuccess;
}

bool context_enter(void)
{
    return error_record(enter()) == cudaSuccess;
}

bool driver_enter(void)
{
    return error_record(driver_load()) == cudaSuccess;
}

int context_device(void)
{
    CUcontext current = NULL;
    CUdevice device = thread_device;
    if (CALL(cuCtxGetCurrent, 4000, &current) == cudaSuccess && current != NULL &&
        current != thread_context && CALL(cuCtxGetDevice, 2000, &device) == cudaSuccess)
        return device;
    return thread_device;
}

cudaError_t context_select(int device)
{
    int count = 0;
    TRY(CALL(cuDeviceGetCount, 2000, &count));
    if (device < 0 || device >= count)
        return cudaErrorInvalidDevice;
    thread_device = device;
    return RUNTIME_VERSION >= 12000 ? make_current(device) : make_current_later(device);
}

cudaError_t context_primary(int device, CUcontext *context)
{
    unsigned resets = 0;
    return retain(device, context, &resets);
}

cudaError_t context_reset(void)
{
    int device = context_device();
    if (device < 0 || device >= MAX_DEVICES)
        return cudaErrorInvalidDevice;
    cudaError_t error =
        CALL_AS(PFN_cuDevicePrimaryCtxReset_v11000, cuDevicePrimaryCtxReset, 7000, 0, device);
    pthread_mutex_lock(&primary_lock);
    primaries[device].context = NULL;
    primaries[device].resets++;
    pthread_mutex_unlock(&primary_lock);
    return error;
}
