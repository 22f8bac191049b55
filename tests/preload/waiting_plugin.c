/* SPDX-License-Identifier: BSD-2-Clause */
/* A plugin whose constructor starts a thread and waits for it. The thread makes the process's first
 * call of setenv (WAITS_FOR_SETENV), of putenv (WAITS_FOR_PUTENV) or of the driver
 * (WAITS_FOR_DRIVER). Or it makes this object's first calls of cudaMalloc and cudaFree
 * (WAITS_FOR_CUDA). The thread that loads the plugin holds the loader's lock meanwhile. */
#include <pthread.h>
#include <stdlib.h>
#ifdef WAITS_FOR_CUDA
#include <cuda_runtime_api.h>
#elif defined WAITS_FOR_DRIVER
#include <cuda.h>
#endif

int waiting_plugin_result(void);

static int result = -1;

static void *call(void *unused)
{
#if defined WAITS_FOR_SETENV
    result = setenv("WAITING_PLUGIN", "set", 1);
#elif defined WAITS_FOR_PUTENV
    static char text[] = "WAITING_PLUGIN=put";
    result = putenv(text);
#elif defined WAITS_FOR_CUDA
    void *p = NULL;
    result = (int)cudaMalloc(&p, 1 << 20);
    int free_rc = (int)cudaFree(p);
    result = result * 1000 + free_rc;
#else
    CUdevice device = 0;
    CUcontext context = NULL;
    CUdeviceptr p = 0;
    result = (int)cuInit(0) + (int)cuDeviceGet(&device, 0) +
             (int)cuDevicePrimaryCtxRetain(&context, device) + (int)cuCtxSetCurrent(context) +
             (int)cuMemAlloc(&p, 1 << 20) + (int)cuMemFree(p) + (int)cuMemAlloc(&p, 1 << 20) +
             (int)cuMemFree(p);
#endif
    return NULL;
}

__attribute__((constructor)) static void wait_for_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, call, NULL) == 0)
        pthread_join(thread, NULL);
}

int waiting_plugin_result(void)
{
    return result;
}
