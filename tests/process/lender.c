/* SPDX-License-Identifier: BSD-2-Clause */
/* A process that does what its standard input says, line by line, and replies with a line each:
 *   take BYTES PIECE   allocates so much in pieces: "code bytes microseconds"
 *   other KIND         64 MiB by another way: create, async, managed, array, host; or a context,
 *                      ctx: "code"
 *   drop               frees all of it: "0"
 *   async BYTES        leaves so much idle in the default stream-ordered pool: "code"
 *   free               what the driver has free, by cuMemGetInfo: "bytes"
 * With an argument a second thread does so, and the first one ends. */
#include <cuda.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 8192 };

static CUdeviceptr blocks[BLOCKS];
static int count;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void take(uint64_t bytes, uint64_t piece)
{
    uint64_t start_us = now_us(), taken = 0;
    CUresult rc = CUDA_SUCCESS;
    while (taken < bytes && count < BLOCKS && rc == CUDA_SUCCESS) {
        rc = cuMemAlloc(&blocks[count], piece);
        if (rc == CUDA_SUCCESS)
            rc = cuMemsetD8(blocks[count++], 1, piece < 4096 ? piece : 4096);
        taken += rc == CUDA_SUCCESS ? piece : 0;
    }
    uint64_t took_us = now_us() - start_us;
    cuCtxSynchronize(); /* virtual time stands still where no thread waits */
    printf("%d %" PRIu64 " %" PRIu64 "\n", rc, taken, took_us);
}

/* The memory stays. */
static int take_otherwise(const char *kind)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUDA_ARRAY_DESCRIPTOR shape = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr block;
    CUarray array;
    CUcontext context;
    void *host;
    size_t bytes = (size_t)64 << 20;
    switch (kind[1]) {
    case 'r':
        return kind[0] == 'c' ? cuMemCreate(&handle, bytes, &prop, 0)
                              : cuArrayCreate(&array, &shape);
    case 's':
        return cuMemAllocAsync(&block, bytes, NULL);
    case 't':
        return cuCtxCreate(&context, NULL, 0, 0);
    case 'a':
        return cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL);
    default:
        return cuMemHostAlloc(&host, bytes, 0);
    }
}

static int leave_in_pool(uint64_t bytes)
{
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool pool;
    CUdeviceptr block;
    CUresult rc = cuDeviceGetDefaultMemPool(&pool, 0);
    if (rc == CUDA_SUCCESS)
        rc = cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    if (rc == CUDA_SUCCESS)
        rc = cuMemAllocAsync(&block, bytes, NULL);
    if (rc == CUDA_SUCCESS)
        rc = cuMemFreeAsync(block, NULL);
    cuCtxSynchronize();
    return rc;
}

static void *serve(void *arg)
{
    CUcontext context;
    char line[128];
    size_t free_bytes, total_bytes;
    uint64_t bytes, piece;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        exit(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "take %" SCNu64 " %" SCNu64, &bytes, &piece) == 2) {
            take(bytes, piece);
        } else if (sscanf(line, "async %" SCNu64, &bytes) == 1) {
            printf("%d\n", leave_in_pool(bytes));
        } else if (strncmp(line, "other ", 6) == 0) {
            printf("%d\n", take_otherwise(line + 6));
        } else if (strncmp(line, "drop", 4) == 0) {
            int wrong = 0;
            while (count > 0)
                wrong += cuMemFree(blocks[--count]) != CUDA_SUCCESS;
            printf("%d\n", wrong);
        } else if (cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_SUCCESS) {
            printf("%zu\n", free_bytes);
        }
    }
    exit(0);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 2)
        serve(NULL);
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        return 1;
    pthread_exit(NULL);
}
