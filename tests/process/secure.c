/* SPDX-License-Identifier: BSD-2-Clause */
/* Says what the library has done in a process: linked with it, and run with and without setuid. */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

static int threads(void)
{
    char line[256];
    int n = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "Threads: %d", &n) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return n;
}

int main(void)
{
    CUcontext context = NULL;
    CUdeviceptr block = 0;
    struct sigaction action;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    for (int i = 0; i < 10; i++)
        if (cuMemAlloc(&block, 1 << 20) != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS)
            return 2;
    /* The control thread makes the folder of the page, if there is to be one. */
    for (int waits = 0; !getauxval(AT_SECURE) && access(getenv("GPUCACHE_DIR"), F_OK); waits++)
        if (usleep(10000) != 0 || waits == 1000)
            break;
    if (sigaction(SIGUSR1, NULL, &action) != 0)
        return 3;
    printf("secure %lu, handler %d, threads %d\n", getauxval(AT_SECURE),
           action.sa_handler != SIG_DFL, threads());
    return 0;
}
