/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Shared by the programs on NVIDIA's libraries. In each round `PROGRAM FIGURES` allocates device
 * memory of varying size, lets the library work in it, and frees it. Results go to stdout, the
 * seconds to the file FIGURES. Where a program sums values, they are small integers, so that the
 * order of the sum does not matter.
 */
#ifndef LIB_COMMON_H
#define LIB_COMMON_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EXIT_SKIPPED = 77 };

/* Every library's status: zero is success. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_rc_ = (int)(call);                                                                \
        if (must_rc_) {                                                                            \
            printf("%s: %d\n", #call, must_rc_);                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline double lib_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Asked before each round, from 0 on: whether it is to be played. After the last one the seconds of
 * all but the first, which warms up, go to the file that argv[1] names. */
static inline int lib_goes_on(int round, int rounds, int argc, char **argv)
{
    static double start;
    if (round == 1)
        start = lib_now();
    FILE *file = round == rounds && argc > 1 ? fopen(argv[1], "w") : NULL;
    if (file) {
        fprintf(file, "{\"seconds\": %.6f}\n", lib_now() - start);
        fclose(file);
    }
    return round < rounds;
}

/* Reproducible, and the same on every machine. */
static inline uint32_t lib_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* FNV-1a over the bytes. */
static inline uint64_t lib_hash(const void *data, size_t size_bytes)
{
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size_bytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static inline void *lib_device(size_t size_bytes)
{
    void *p = NULL;
    MUST(cudaMalloc(&p, size_bytes));
    return p;
}

static inline void *lib_host(size_t size_bytes)
{
    void *p = malloc(size_bytes);
    if (!p)
        exit(2);
    return p;
}

/* By the stream that will use it. A copy from pageable memory may return before its bytes have
 * arrived, and a non-blocking stream does not wait for another one's. */
static inline void *lib_upload(const void *data, size_t size_bytes, cudaStream_t stream)
{
    void *p = lib_device(size_bytes);
    MUST(cudaMemcpyAsync(p, data, size_bytes, cudaMemcpyHostToDevice, stream));
    return p;
}

/* Frees both. */
static inline uint64_t lib_hash_device(void *device, void *host, size_t size_bytes)
{
    MUST(cudaMemcpy(host, device, size_bytes, cudaMemcpyDeviceToHost));
    uint64_t hash = lib_hash(host, size_bytes);
    MUST(cudaFree(device));
    free(host);
    return hash;
}

#endif
