// SPDX-License-Identifier: BSD-2-Clause
//
// A kernel that was submitted before a block was allocated, and is told its address while it runs. Natively the
// free of the block waits for it, as for all work; so it does not help to know which streams were given work
// while the block was alive.
//   late [--by-hand]    by hand: the memory changes hands without a free, and its new owner's words must be lost.
// Ends with 0 if no word was lost, 1 if some were.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

enum { ROUNDS = 40, WORDS = 16 * 1024, RUN = 200 };

#define REQUIRE(call)                                                                              \
    do {                                                                                           \
        cudaError_t rc_ = (call);                                                                  \
        if (rc_ != cudaSuccess) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(rc_));                           \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

struct mailbox {
    volatile uint64_t address; /* the host's, for the kernel */
    volatile uint32_t seen;    /* the kernel's, for the host */
};

/* Gives up waiting after some seconds. */
__global__ void write_told(mailbox *box, uint32_t value, long long cycles)
{
    __shared__ uint64_t address;
    long long start = clock64();
    if (threadIdx.x == 0) {
        while (!(address = box->address) && clock64() - start < 8000000000)
            ;
        box->seen = 1;
        __threadfence_system();
    }
    __syncthreads();
    for (start = clock64(); clock64() - start < cycles;)
        ;
    for (int i = threadIdx.x; address && i < WORDS; i += blockDim.x)
        ((volatile uint32_t *)address)[i] = value;
}

__global__ void write(volatile uint32_t *at, uint32_t value)
{
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        at[i] = value;
}

__global__ void count_wrong(const uint32_t *at, uint32_t value, unsigned *wrong)
{
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        if (at[i] != value)
            atomicAdd(wrong, 1u);
}

/* The kernel on one stream, the new owner's work on another, or on the same. */
static unsigned play(cudaStream_t told, cudaStream_t next, bool by_hand)
{
    unsigned *wrong, lost = 0;
    uint32_t *scratch;
    mailbox *box;
    REQUIRE(cudaHostAlloc(&box, sizeof *box, cudaHostAllocMapped));
    REQUIRE(cudaMalloc(&wrong, sizeof *wrong));
    REQUIRE(cudaMalloc(&scratch, WORDS * sizeof *scratch));
    REQUIRE(cudaMemset(wrong, 0, sizeof *wrong));
    for (int i = 0; i < RUN; i++)
        write<<<1, 256, 0, told>>>(scratch, i);
    REQUIRE(cudaDeviceSynchronize());
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint32_t *old, *block;
        box->address = 0;
        box->seen = 0;
        write_told<<<1, 256, 0, told>>>(box, 0xdead, 2000000);
        REQUIRE(cudaMalloc(&old, WORDS * sizeof *old));
        box->address = (uint64_t)(uintptr_t)old;
        while (!box->seen)
            ;
        if (by_hand) {
            block = old;
        } else {
            REQUIRE(cudaFree(old));
            REQUIRE(cudaMalloc(&block, WORDS * sizeof *block));
        }
        write<<<1, 256, 0, next>>>(block, round);
        REQUIRE(cudaDeviceSynchronize());
        count_wrong<<<1, 256, 0, next>>>(block, round, wrong);
        REQUIRE(cudaDeviceSynchronize());
        REQUIRE(cudaFree(block));
    }
    REQUIRE(cudaMemcpy(&lost, wrong, sizeof lost, cudaMemcpyDeviceToHost));
    REQUIRE(cudaFree(wrong));
    REQUIRE(cudaFree(scratch));
    REQUIRE(cudaFreeHost(box));
    return lost;
}

int main(int argc, char **argv)
{
    bool by_hand = argc > 1 && !strcmp(argv[1], "--by-hand");
    cudaStream_t one, other;
    REQUIRE(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned same = by_hand ? 0 : play(one, one, false), apart = play(one, other, by_hand);
    printf("words lost: %u on one stream, %u on two\n", same, apart);
    return same + apart ? 1 : 0;
}
