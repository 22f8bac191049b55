/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A program as users write them: it calls cudaMalloc and cudaFree of the CUDA runtime often, and
 * knows of no cache. It "trains": each step allocates activations and workspaces of varying size,
 * launches kernels on them and frees them. Weights live on. Results depend on every copy.
 *
 * Plain C that is C++ as well: nvcc builds it as CUDA source with its static runtime, a C compiler
 * against any libcudart.
 *
 * demo [--steps N] [--words N] [--pause] [--figures FILE]
 *   --words N   kernels touch at most N words of a block (simulated GPUs are slow)
 *   --pause     half way, with everything freed but the weights, say so and wait for a line on
 * stdin
 *   --figures   write "calls N" and "ns N" there; stdout carries nothing but results
 */
#include "tests/preload/kernels.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 24, WEIGHTS = 8 };

static const size_t weight_bytes = (size_t)4 << 20;

static struct demo {
    cudaKernel_t fill, copy;
    void *weights[WEIGHTS];
    void *activations[LAYERS];
    uint64_t words_max;
    unsigned long calls; /* of cudaMalloc and cudaFree */
    uint64_t (*simulated_ns)(void);
} demo;

#define CHECK(call) check((call), #call, __LINE__)

static void check(cudaError_t result, const char *what, int line)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "demo: line %d: %s: %s\n", line, what, cudaGetErrorString(result));
    exit(1);
}

/* A simulated driver has a clock of its own, on which calls and kernels take their time. */
static void find_clock(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *clock = driver ? dlsym(driver, "simNow_ns") : NULL;

    memcpy(&demo.simulated_ns, &clock, sizeof clock);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    if (demo.simulated_ns)
        return demo.simulated_ns();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *device_malloc(size_t size_bytes)
{
    void *block;

    CHECK(cudaMalloc(&block, size_bytes));
    demo.calls++;
    return block;
}

static void device_free(void *block)
{
    CHECK(cudaFree(block));
    demo.calls++;
}

static void launch(cudaKernel_t kernel, void **parameters)
{
    dim3 grid, block;

    grid.x = 64;
    grid.y = grid.z = 1;
    block.x = 256;
    block.y = block.z = 1;
    CHECK(cudaLaunchKernel((const void *)kernel, grid, block, parameters, 0, 0));
}

static uint64_t words_of(size_t size_bytes)
{
    uint64_t words = size_bytes / 4;

    return words < demo.words_max ? words : demo.words_max;
}

static void fill(void *to, size_t size_bytes, uint32_t value)
{
    uint64_t words = words_of(size_bytes);
    void *parameters[] = {&to, &words, &value};

    launch(demo.fill, parameters);
}

static void copy(void *to, void *from, size_t size_bytes)
{
    uint64_t words = words_of(size_bytes);
    void *parameters[] = {&to, &from, &words};

    launch(demo.copy, parameters);
}

/* Batches of varying length: between 64 KiB and 8 MiB. */
static size_t activation_bytes(int step, int layer)
{
    return (size_t)(1 + (step * 7 + layer * 3) % 128) << 16;
}

/* One step; returns its "loss". */
static uint32_t train(int step)
{
    uint32_t loss;

    for (int layer = 0; layer < LAYERS; layer++) {
        size_t size_bytes = activation_bytes(step, layer);
        void *workspace = device_malloc(size_bytes / 2);

        demo.activations[layer] = device_malloc(size_bytes);
        fill(workspace, size_bytes / 2, (uint32_t)(step * LAYERS + layer));
        copy(demo.activations[layer], workspace, size_bytes / 2);
        device_free(workspace);
    }
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        size_t size_bytes = activation_bytes(step, layer) / 2;

        copy(demo.weights[layer % WEIGHTS], demo.activations[layer],
             size_bytes < weight_bytes ? size_bytes : weight_bytes);
        device_free(demo.activations[layer]);
    }
    CHECK(cudaMemcpy(&loss, demo.weights[step % WEIGHTS], sizeof loss, cudaMemcpyDeviceToHost));
    return loss;
}

static uint32_t weights_checksum(void)
{
    uint32_t *host = (uint32_t *)malloc(weight_bytes);
    uint32_t sum = 0;

    for (int i = 0; i < WEIGHTS && host; i++) {
        CHECK(cudaMemcpy(host, demo.weights[i], weight_bytes, cudaMemcpyDeviceToHost));
        for (size_t word = 0; word < weight_bytes / 4; word++)
            sum = sum * 31 + host[word];
    }
    free(host);
    return sum;
}

static void start(void)
{
    cudaLibrary_t library;

    CHECK(cudaSetDevice(0));
    CHECK(cudaLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cudaLibraryGetKernel(&demo.fill, library, "fill"));
    CHECK(cudaLibraryGetKernel(&demo.copy, library, "copy"));
    for (int i = 0; i < WEIGHTS; i++) {
        demo.weights[i] = device_malloc(weight_bytes);
        CHECK(cudaMemset(demo.weights[i], i, weight_bytes));
    }
    find_clock();
}

int main(int argc, char **argv)
{
    const char *figures = NULL;
    int steps = 400, pause = 0;
    uint32_t sum = 0;
    uint64_t spent_ns = 0;

    demo.words_max = UINT64_MAX;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--pause"))
            pause = 1;
        else if (!strcmp(argv[i], "--steps") && i + 1 < argc)
            steps = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--words") && i + 1 < argc)
            demo.words_max = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--figures") && i + 1 < argc)
            figures = argv[++i];
        else
            return 2;
    }
    start();
    for (int step = 0; step < steps; step++) {
        uint64_t before_ns;

        if (pause && step == steps / 2) {
            CHECK(cudaDeviceSynchronize());
            puts("half way");
            fflush(stdout);
            while (getchar() != '\n' && !feof(stdin))
                ;
        }
        before_ns = now_ns();
        sum = sum * 31 + train(step);
        spent_ns += now_ns() - before_ns;
    }
    sum = sum * 31 + weights_checksum();
    printf("trained %d steps, checksum %08x\n", steps, (unsigned)sum);
    for (int i = 0; i < WEIGHTS; i++)
        device_free(demo.weights[i]);
    if (figures) {
        FILE *file = fopen(figures, "w");

        if (file) {
            fprintf(file, "calls %lu\nns %llu\n", demo.calls, (unsigned long long)spent_ns);
            fclose(file);
        }
    }
    return 0;
}
