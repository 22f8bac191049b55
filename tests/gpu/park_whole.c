/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A process with the static CUDA runtime that leaves the GPU as a whole (part_whole.py). It says
 * "started" once it has memory. Then it reads one line at a time and answers each with one line:
 *   fill MIB   so much in blocks of 64 MiB            -> bytes
 *   check      a mebibyte of each block               -> sound, or the number of wrong bytes
 *   calls      the calls of park_whole.def           -> their names
 *   call N     makes one of them                      -> name, code, ns
 *   end        exit                                   -> ended
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS_MAX = 2048, BLOCK_BYTES = 64 << 20, LOOK_BYTES = 1 << 20 };

static struct block {
    void *at;
    int value;
} blocks[BLOCKS_MAX];
static int num_blocks;
static cudaStream_t stream;
static cudaEvent_t event, spare;

/* Where the calls' outputs go. */
static struct {
    int number;
    unsigned flags;
    size_t bytes, more_bytes;
    const char *text;
    char room[64];
    void *pointer;
    CUuuid uuid;
    CUcontext context;
    enum cudaStreamCaptureStatus capturing;
    CUmemoryPool pool;
    cudaStream_t stream;
    cudaEvent_t event;
    struct cudaPointerAttributes attributes;
} out;

static void check(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "park_whole: %s: error %d\n", what, (int)rc);
    exit(2);
}
#define CHECK(call) check(call, #call)

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static size_t fill(size_t bytes)
{
    size_t sum = 0;

    for (; sum < bytes && num_blocks < BLOCKS_MAX; sum += BLOCK_BYTES) {
        struct block *b = &blocks[num_blocks++];

        b->value = num_blocks % 251 + 1;
        CHECK(cudaMalloc(&b->at, BLOCK_BYTES));
        CHECK(cudaMemset(b->at, b->value, BLOCK_BYTES));
    }
    CHECK(cudaDeviceSynchronize());
    return sum;
}

static void say_check(void)
{
    static unsigned char seen[LOOK_BYTES];
    size_t wrong = 0;

    for (int i = 0; i < num_blocks; i++) {
        size_t at = (size_t)i * 4099 % (BLOCK_BYTES - LOOK_BYTES);

        CHECK(cudaMemcpy(seen, (char *)blocks[i].at + at, LOOK_BYTES, cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < LOOK_BYTES; j++)
            wrong += seen[j] != blocks[i].value;
    }
    if (wrong)
        printf("%zu wrong bytes\n", wrong);
    else
        puts("sound");
}

static void *driver_function(const char *name)
{
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

    if (!found)
        exit(2);
    return found;
}

/* The event of an earlier call. */
static cudaError_t destroy_event(void)
{
    cudaError_t rc = spare ? cudaEventDestroy(spare) : cudaSuccess;

    spare = NULL;
    return rc;
}

#define RUNTIME(name, call)                                                                        \
    static int make_##name(void)                                                                   \
    {                                                                                              \
        return (int)(call);                                                                        \
    }
#define DRIVER(symbol, types, arguments)                                                           \
    static int make_##symbol(void)                                                                 \
    {                                                                                              \
        CUresult(*function) types;                                                                 \
        *(void **)&function = driver_function(#symbol);                                            \
        return (int)function arguments;                                                            \
    }
#include "tests/gpu/park_whole.def"

static const struct {
    const char *name;
    int (*make)(void);
} calls[] = {
#define RUNTIME(name, call) {#name, make_##name},
#define DRIVER(symbol, types, arguments) {#symbol, make_##symbol},
#include "tests/gpu/park_whole.def"
};
enum { CALLS = sizeof calls / sizeof calls[0] };

int main(void)
{
    char line[64];
    size_t mib;
    int which;

    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaEventCreateWithFlags(&spare, cudaEventDisableTiming));
    fill(BLOCK_BYTES);
    puts("started");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "fill %zu", &mib) == 1) {
            printf("%zu\n", fill(mib << 20));
        } else if (!strncmp(line, "check", 5)) {
            say_check();
        } else if (!strncmp(line, "calls", 5)) {
            for (int i = 0; i < CALLS; i++)
                printf("%s ", calls[i].name);
            putchar('\n');
        } else if (sscanf(line, "call %d", &which) == 1 && which >= 0 && which < CALLS) {
            uint64_t start_ns = now_ns();
            int rc = calls[which].make();

            printf("%s %d %llu\n", calls[which].name, rc,
                   (unsigned long long)(now_ns() - start_ns));
        } else {
            puts("ended");
            return 0;
        }
        fflush(stdout);
    }
    return 2;
}
