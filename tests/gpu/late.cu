// SPDX-License-Identifier: BSD-2-Clause
//
// A kernel is submitted before a block is allocated, and is told the block's address while it runs.
// Natively the free of the block waits for this kernel, as for all work. So a pool may not rely on
// knowing which streams got work while the block was alive.
//   late [--by-hand]    see handover.cuh
// Status 0: no word was lost; 1: some were.
#include "tests/gpu/handover.cuh"

enum { ROUNDS = 40 };

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
        block = handed_over(old, by_hand);
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
    bool by_hand = by_hand_asked(argc, argv);
    cudaStream_t one, other;
    REQUIRE(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned same = by_hand ? 0 : play(one, one, false), apart = play(one, other, by_hand);
    printf("words lost: %u on one stream, %u on two\n", same, apart);
    return same + apart ? 1 : 0;
}
