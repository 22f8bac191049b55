// SPDX-License-Identifier: BSD-2-Clause
//
// What late.cu and early.cu share. Both hand memory over while a kernel still writes there, and
// count the words that the new owner loses. `--by-hand` hands it over without a free: words must be
// lost then.
#ifndef TESTS_GPU_HANDOVER_CUH
#define TESTS_GPU_HANDOVER_CUH

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

// Words of a block, and launches before the first round: enough to make one stream the only one.
enum { WORDS = 16 * 1024, RUN = 200 };

#define REQUIRE(call)                                                                              \
    do {                                                                                           \
        cudaError_t rc_ = (call);                                                                  \
        if (rc_ != cudaSuccess) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(rc_));                           \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static bool by_hand_asked(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], "--by-hand");
}

// The new owner's block: the old one as it is, or what cudaMalloc gives after the free.
static uint32_t *handed_over(uint32_t *old, bool by_hand)
{
    uint32_t *block = old;
    if (!by_hand) {
        REQUIRE(cudaFree(old));
        REQUIRE(cudaMalloc(&block, WORDS * sizeof *block));
    }
    return block;
}

__global__ void count_wrong(const uint32_t *at, uint32_t value, unsigned *wrong)
{
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        if (at[i] != value)
            atomicAdd(wrong, 1u);
}

#endif
